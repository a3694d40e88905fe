"""Pausing and resuming jobs.

A paused job keeps its state and all that is finished; nothing of it is leased. Its deadline stands
still: resuming moves it by as long as the pause was.
"""

from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.models import Job
from runner.domain.budgets import EXCEEDED, LimitKind, amount, tightest
from runner.domain.errors import NotFound, StateConflict
from runner.domain.ids import JobId, ProjectId
from runner.domain.rings import Bell
from runner.domain.states import PAUSABLE_JOB_STATES, PauseReason
from runner.doorbell import ring
from runner.services.audit import record
from runner.services.job_records import JobRecord
from runner.services.jobs import get_job
from runner.services.spending import limits_of_job

PAUSED_AT_MOST = timedelta(days=30)  # then it expires: its input and its queue place are held


def pause_job(session: Session, project_id: ProjectId, job_id: UUID) -> JobRecord:
    """Lease nothing more of a job until it is resumed; repeating it is harmless.

    Within a second, what has not entered an engine is given back; lines in an engine run to
    their end, so that nothing is computed twice. A job that a budget stopped is held by its
    user from now on.
    """
    row = _lock(session, project_id, job_id, "paused")
    if row.pause_reason != PauseReason.USER:
        row.paused_at = func.coalesce(Job.paused_at, func.now())
        row.pause_reason = PauseReason.USER
        row.pause_note = row.pause_needs_nano = None
        session.flush()
        record(session, "job.pause", str(job_id), project_id=project_id, actor="api")
    ring(session, Bell.CANCEL, JobId(job_id))
    return get_job(session, project_id, job_id)


def resume_job(
    session: Session, project_id: ProjectId, job_id: UUID, max_cost_nano: int | None = None
) -> JobRecord:
    """Let a paused job go on with what was left of its window; else nothing changes.

    Args:
        max_cost_nano: the job's limit from now on; None leaves it as it is.

    Raises:
        StateConflict: it has ended, or a limit does not bear its next line.
    """
    row = _lock(session, project_id, job_id, "resumed")
    if max_cost_nano is not None:
        row.max_cost_nano = max_cost_nano
        session.flush()
    if row.paused_at is not None:
        _require_room(session, row)
        release(session, job_id)
        record(session, "job.resume", str(job_id), project_id=project_id, actor="api")
    return get_job(session, project_id, job_id)


def has_room(session: Session, job: Job) -> bool:
    """Whether every limit of a job that a budget stopped bears its next line."""
    limits = limits_of_job(session, job)
    return not limits or tightest(limits).left_nano >= (job.pause_needs_nano or 0)


def release(session: Session, job_id: UUID) -> None:
    """End the pause of a job that has one."""
    session.execute(
        update(Job)
        .where(Job.id == job_id, Job.paused_at.is_not(None))
        .values(
            expires_at=Job.expires_at + (func.now() - Job.paused_at),
            paused_at=None,
            pause_reason=None,
            pause_note=None,
            pause_needs_nano=None,
        )
    )
    ring(session, Bell.WAKE)


def _require_room(session: Session, job: Job) -> None:
    if job.pause_reason == PauseReason.BUDGET and not has_room(session, job):
        limit = tightest(limits_of_job(session, job))
        raise StateConflict(
            f"The next line can cost {amount(job.pause_needs_nano or 0)}, and {limit.told()};"
            " raise the limit.",
            code=EXCEEDED,
            param="max_cost" if limit.kind is LimitKind.JOB else None,
        )


def _lock(session: Session, project_id: ProjectId, job_id: UUID, deed: str) -> Job:
    query = select(Job).where(Job.id == job_id, Job.project_id == project_id).with_for_update()
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFound("No such job in this project.", param="job_id")
    if row.state not in PAUSABLE_JOB_STATES:
        raise StateConflict(f"A job that is {row.state} cannot be {deed}.", param="job_id")
    return row
