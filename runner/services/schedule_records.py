"""What may be shown of schedules and of their runs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from uuid import UUID
from zoneinfo import ZoneInfo

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from runner.db.models import Job, Schedule, ScheduleRun
from runner.domain.cron import Cron
from runner.domain.ids import FileId, ProjectId, RunId, ScheduleId
from runner.domain.reuse import Dedupe
from runner.services.job_records import JobRecord, job_records

_NEXT_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Terms:
    """What a schedule asks for: when it runs, on what, and how; exactly one input is set."""

    name: str
    cron: str
    endpoint: str
    zone: str = "UTC"
    catch_up: str = "latest"
    overlap: str = "skip"
    input_file_id: FileId | None = None
    input_tag: str | None = None
    input_path: str | None = None
    output_path: str | None = None
    completion_window: str = "24h"
    priority: int = 0
    on_invalid: str = "skip"
    dedupe: str = Dedupe.OFF
    metadata: dict[str, str] | None = None
    defaults: bytes | None = None
    max_cost_nano: int | None = None  # of each job
    on_budget: str = "refuse"
    run_hours: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One planned time. ``code`` and ``reason`` tell why it became no job, or why it waits."""

    id: RunId
    schedule_id: ScheduleId
    planned_at: datetime
    trigger: str
    state: str
    code: str | None
    reason: str | None
    job: JobRecord | None
    started_at: datetime | None
    output_state: str
    output_problem: str | None

    @property
    def outcome(self) -> str:
        """The state of its job, where it has one, else its own."""
        return self.state if self.job is None else str(self.job.state)


@dataclass(frozen=True, slots=True)
class ScheduleRecord:
    """A schedule, in words too, with its next five times in UTC and its last run."""

    id: ScheduleId
    project_id: ProjectId
    terms: Terms
    words: str
    state: str
    problem: str | None
    next_runs: tuple[datetime, ...]
    last_run: RunRecord | None
    created_at: datetime


def schedule_records(session: Session, rows: Sequence[Schedule]) -> list[ScheduleRecord]:
    """The records of rows of one project."""
    now = session.scalars(select(func.now())).one()
    last = _last_runs(session, [row.id for row in rows])
    return [_record_of(row, now, last.get(row.id)) for row in rows]


def run_records(session: Session, rows: Sequence[ScheduleRun]) -> list[RunRecord]:
    """The records of runs, with their jobs."""
    ids = [row.job_id for row in rows if row.job_id is not None]
    found = session.scalars(select(Job).where(Job.id.in_(ids))).all() if ids else []
    jobs: dict[UUID, JobRecord] = {job.id: job for job in job_records(session, found)}
    return [
        RunRecord(
            id=RunId(row.id),
            schedule_id=ScheduleId(row.schedule_id),
            planned_at=row.planned_at,
            trigger=row.trigger,
            state=row.state,
            code=row.code,
            reason=row.reason,
            job=jobs.get(row.job_id) if row.job_id else None,
            started_at=row.started_at,
            output_state=row.output_state,
            output_problem=row.output_problem,
        )
        for row in rows
    ]


def terms_of(row: Schedule) -> Terms:
    """What a stored schedule asks for."""
    return Terms(
        name=row.name,
        cron=row.cron,
        endpoint=row.endpoint,
        zone=row.zone,
        catch_up=row.catch_up,
        overlap=row.overlap,
        input_file_id=FileId(row.input_file_id) if row.input_file_id else None,
        input_tag=row.input_tag,
        input_path=row.input_path,
        output_path=row.output_path,
        completion_window=row.completion_window,
        priority=row.priority,
        on_invalid=row.on_invalid,
        dedupe=row.dedupe,
        metadata=row.job_metadata,
        defaults=row.defaults,
        max_cost_nano=row.max_cost_nano,
        on_budget=row.on_budget,
        run_hours=row.run_hours,
        tags=tuple(row.tags),
    )


def cron_of(row: Schedule) -> Cron:
    """When a stored schedule runs; it was checked when it was made."""
    return Cron(row.cron, ZoneInfo(row.zone))


def _last_runs(session: Session, ids: list[UUID]) -> dict[UUID, RunRecord]:
    if not ids:
        return {}
    query = (
        select(ScheduleRun)
        .ext(distinct_on(ScheduleRun.schedule_id))
        .where(ScheduleRun.schedule_id.in_(ids))
        .order_by(ScheduleRun.schedule_id, ScheduleRun.planned_at.desc())
    )
    runs = run_records(session, session.scalars(query).all())
    return {run.schedule_id: run for run in runs}


def _record_of(row: Schedule, now: datetime, last: RunRecord | None) -> ScheduleRecord:
    cron = cron_of(row)
    times = islice(cron.after(now), _NEXT_SHOWN) if row.state == "active" else ()
    return ScheduleRecord(
        id=ScheduleId(row.id),
        project_id=ProjectId(row.project_id),
        terms=terms_of(row),
        words=cron.words,
        state=row.state,
        problem=row.problem,
        next_runs=tuple(times),
        last_run=last,
        created_at=row.created_at,
    )
