"""Who may act on what all projects share, such as the workers."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import ApiKey
from runner.domain.errors import Forbidden
from runner.services.keys import Caller


def is_operator(session: Session, caller: Caller) -> bool:
    """Whether a caller may: the installation's own command line, or a key that was made for it."""
    if caller.api_key_id is None:
        return True
    query = select(ApiKey.is_operator).where(ApiKey.id == caller.api_key_id)
    return bool(session.scalar(query))


def require_operator(session: Session, caller: Caller) -> None:
    """Let operators alone go on.

    Raises:
        Forbidden: the caller's key is none of theirs.
    """
    if not is_operator(session, caller):
        raise Forbidden(
            "Workers serve all projects, so this takes an operator's key; make one with: tokenmill"
            " keys create --operator.",
            code="operator_only",
        )
