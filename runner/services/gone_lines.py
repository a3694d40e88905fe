"""Lines that are there no more: which views of ended jobs, and why, in a sentence."""

from collections.abc import Iterable
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import File, Job
from runner.domain.errors import Gone
from runner.services.file_life import is_visible, removed, why_gone

_VIEWS = ("output", "error")


def gone_views(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, dict[str, str]]:
    """Why a view cannot be read any more, by job and view; what can be read is left out."""
    ids = list(job_ids)
    found: dict[UUID, dict[str, str]] = {}
    for row in session.scalars(select(File).where(File.job_id.in_(ids), ~is_visible())):
        assert row.job_id is not None
        assert row.view is not None
        found.setdefault(row.job_id, {})[row.view] = why_gone(row)
    query = select(Job.id, Job.lines_removed_at).where(Job.id.in_(ids))
    for job_id, moment in session.execute(query):
        if moment is not None:
            found[job_id] = dict.fromkeys(_VIEWS, removed(moment))
    return found


def require_lines(session: Session, job_id: UUID) -> None:
    """Refuse what needs the lines of a job from which retention has removed them.

    Raises:
        Gone: they are there no more.
    """
    moment = session.scalar(select(Job.lines_removed_at).where(Job.id == job_id))
    if moment is not None:
        raise Gone(removed(moment))


def require_view(session: Session, job_id: UUID, view: str) -> None:
    """Refuse to read a view whose lines are gone.

    Raises:
        Gone: the file was deleted or has expired, or retention has removed the lines.
    """
    reason = gone_views(session, [job_id]).get(job_id, {}).get(view)
    if reason is not None:
        raise Gone(reason)
