"""Changing what may still be changed of a job that has not ended: its priority and its hours."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import Job
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import ProjectId
from runner.domain.rings import Bell
from runner.domain.run_hours import parse_run_hours
from runner.domain.states import JobState
from runner.doorbell import ring
from runner.services.audit import record
from runner.services.job_records import JobRecord
from runner.services.jobs import check_priority, check_start, get_job

CLEARABLE = frozenset({"start_after", "run_hours"})


@dataclass(frozen=True, slots=True)
class JobChange:
    """What is to be changed; None leaves a thing as it is, ``clear`` names what to take away."""

    priority: int | None = None
    start_after: datetime | None = None
    run_hours: str | None = None
    clear: frozenset[str] = frozenset()


def edit_job(session: Session, project_id: ProjectId, job_id: UUID, change: JobChange) -> JobRecord:
    """Change a job that is queued or runs; shards that a worker has begun go on as they were.

    The deadline moves with ``start_after``: the window begins at the later of creation and start.
    """
    values = _checked(session, change)
    query = select(Job).where(Job.id == job_id, Job.project_id == project_id).with_for_update()
    row = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        raise NotFound("No such batch in this project.", param="batch_id")
    state = JobState(row.state)
    if state.is_terminal or state in (JobState.CANCELLING, JobState.FINALIZING):
        raise StateConflict(
            f"A batch that is {state} cannot be changed any more.", param="batch_id"
        )
    began = _begin(row)
    for name, value in values.items():
        setattr(row, name, value)
    row.expires_at += _begin(row) - began  # pauses have moved it, too
    session.flush()
    told = {name: None if value is None else str(value) for name, value in values.items()}
    record(session, "job.edit", str(job_id), project_id=project_id, actor="api", detail=told)
    ring(session, Bell.WAKE)
    return get_job(session, project_id, job_id)


def _begin(job: Job) -> datetime:
    """When a job's window begins."""
    return max(job.created_at, job.start_after or job.created_at)


def _checked(session: Session, change: JobChange) -> dict[str, Any]:
    """The columns to set."""
    unknown = change.clear - CLEARABLE
    if unknown:
        raise InvalidRequest(f"{min(unknown)} cannot be null.", param=min(unknown))
    values: dict[str, Any] = dict.fromkeys(sorted(change.clear))
    if change.priority is not None:
        check_priority(change.priority)
        values["priority"] = change.priority
    if change.start_after is not None:
        check_start(session, change.start_after)
        values["start_after"] = change.start_after
    if change.run_hours is not None:
        values["run_hours"] = str(parse_run_hours(change.run_hours))
    if not values:
        raise InvalidRequest("Nothing to change: give priority, start_after or run_hours.")
    return values
