"""Requests that come again: for how long an idempotency key stands for what it made."""

from datetime import timedelta

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from runner.db.models import File, Job
from runner.domain.errors import InvalidRequest

_KEPT = timedelta(days=2)  # clients try again within seconds, scripts within a day


def key_reused(what: str) -> InvalidRequest:
    """The refusal of an idempotency key that stands for something else."""
    return InvalidRequest(
        f"This Idempotency-Key was used with another {what}; use a new key.",
        code="idempotency_key_reused",
        param="Idempotency-Key",
    )


def release_keys(session: Session) -> None:
    """Forget the keys that nobody tries again; they may be used anew."""
    for table in (File, Job):
        session.execute(
            update(table)
            .where(table.idempotency_key.is_not(None), table.created_at < func.now() - _KEPT)
            .values(idempotency_key=None)
        )
