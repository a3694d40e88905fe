"""Lines that are there no more: which views of ended jobs, and why, in a sentence."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import File
from runner.domain.errors import Gone
from runner.services.file_life import is_visible, why_gone


def gone_views(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, dict[str, str]]:
    """Why a view cannot be read any more, by job and view; what can be read is left out."""
    query = select(File).where(File.job_id.in_(list(job_ids)), ~is_visible())
    found: dict[UUID, dict[str, str]] = {}
    for row in session.scalars(query):
        assert row.job_id is not None
        assert row.view is not None
        found.setdefault(row.job_id, {})[row.view] = why_gone(row)
    return found


def require_view(session: Session, job_id: UUID, view: str) -> None:
    """Refuse to read a view whose lines are gone.

    Raises:
        Gone: the file was deleted or has expired.
    """
    reason = gone_views(session, [job_id]).get(job_id, {}).get(view)
    if reason is not None:
        raise Gone(reason)
