"""Whose turn it is, as the database has it: jobs that wait, and what projects have lately had."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, Float, cast, delete, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from runner.db.models import FairShare, Job, JobModel, Project, Shard
from runner.domain.ids import JobId, ModelId, ProjectId, WorkerId
from runner.domain.leases import FinishedItem
from runner.domain.run_hours import parse_run_hours
from runner.domain.states import JobState, ShardState
from runner.domain.turns import Served, Turns, WaitingJob

_HALVED_EVERY_SECONDS = 60.0
_FORGOTTEN_AFTER = timedelta(hours=1)


def turns(
    session: Session, model_id: ModelId, suspect: bool = False, above: int | None = None
) -> Turns:
    """The turns of the jobs that have shards of a model to lease now."""
    return turns_of(session, waiting_jobs(session, model_id, suspect, above))


def turns_of(session: Session, jobs: Sequence[WaitingJob]) -> Turns:
    """The turns of some jobs, by what their projects have had."""
    return Turns(jobs, served_since(session, list({job.project_id for job in jobs})))


def waiting_jobs(
    session: Session, model_id: ModelId | None, suspect: bool = False, above: int | None = None
) -> list[WaitingJob]:
    """Jobs with shards to lease for a model that may run now; with ``above``, those of a higher
    priority. Without a model: for any, a job once for each of its own."""
    first = _ready_shard(suspect, func.min(Shard.shard_no))
    last = _ready_shard(suspect, func.max(Shard.shard_no))
    query = (
        select(
            Job.id,
            JobModel.model_id,
            Job.project_id,
            Project.weight,
            Job.priority,
            Job.expires_at,
            Job.run_hours,
            JobModel.lines,
            JobModel.shards,
            first.label("first"),
            last.label("last"),
            func.now().label("now"),
        )
        .join(Project, Project.id == Job.project_id)
        .join(JobModel, JobModel.job_id == Job.id)
        .where(*may_lease())
    )
    if model_id is not None:
        query = query.where(JobModel.model_id == model_id)
    if above is not None:
        query = query.where(Job.priority > above)
    return [
        WaitingJob(
            id=JobId(row.id),
            model_id=ModelId(row.model_id),
            project_id=ProjectId(row.project_id),
            weight=row.weight,
            priority=row.priority,
            expires_at=row.expires_at,
            seconds_left=(row.expires_at - row.now).total_seconds(),
            # A model's shards are neighbours, leased in the order of their numbers, so two of them
            # tell enough; the halves of split ones come after all.
            shards=min(row.last - row.first + 1, row.shards),
            shard_lines=max(1, row.lines // row.shards),
        )
        for row in session.execute(query)
        if row.first is not None and is_open(row.run_hours, row.now)
    ]


def is_open(run_hours: str | None, now: datetime) -> bool:
    """Whether a job with these hours may start lines at a moment."""
    return run_hours is None or parse_run_hours(run_hours).is_open(now)


def may_lease() -> tuple[ColumnElement[bool], ...]:
    """Jobs of which lines may be leased now, whatever their hours."""
    return (
        Job.state == JobState.IN_PROGRESS,
        Job.paused_at.is_(None),
        or_(Job.start_after.is_(None), Job.start_after <= func.now()),
    )


def is_ready(
    model_id: ModelId | InstrumentedAttribute[UUID], suspect: bool
) -> tuple[ColumnElement[bool], ...]:
    """Shards of a model that may be leased now."""
    return (
        Shard.state == ShardState.OPEN,
        Shard.suspect.is_(suspect),
        Shard.model_id == model_id,
        or_(Shard.not_before.is_(None), Shard.not_before <= func.now()),
    )


def served_since(session: Session, projects: Sequence[ProjectId]) -> dict[ProjectId, Served]:
    """What some projects have had of all workers lately, and have in hand."""
    faded = _faded()
    had = session.execute(
        select(
            FairShare.project_id,
            func.sum(FairShare.device_us * faded),
            func.sum(FairShare.lines * faded),
        )
        .where(FairShare.project_id.in_(projects))
        .group_by(FairShare.project_id)
    )
    served = {ProjectId(row[0]): Served(float(row[1]), float(row[2])) for row in had}
    left = func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed
    in_hand = session.execute(
        select(Job.project_id, func.sum(left))
        .join(Shard, Shard.job_id == Job.id)
        .where(Shard.state == ShardState.LEASED, Job.project_id.in_(projects))
        .group_by(Job.project_id)
    )
    for project_id, lines in in_hand:
        before = served.get(ProjectId(project_id), Served())
        served[ProjectId(project_id)] = Served(before.device_us, before.lines, int(lines))
    return served


def note_served(session: Session, worker_id: WorkerId, items: Sequence[FinishedItem]) -> None:
    """Count the device time of lines that ended, whether or not they are billed."""
    sums: dict[ProjectId, tuple[int, int]] = {}
    for item in items:
        time, lines = sums.get(item.lease.project_id, (0, 0))
        sums[item.lease.project_id] = (time + item.metrics.device_us, lines + 1)
    if not sums:
        return
    new = insert(FairShare).values(
        [
            {
                "project_id": project_id,
                "worker_id": worker_id,
                "device_us": float(time),
                "lines": float(lines),
                "as_of": func.now(),
            }
            for project_id, (time, lines) in sums.items()
        ]
    )
    faded = _faded()
    session.execute(
        new.on_conflict_do_update(
            index_elements=[FairShare.project_id, FairShare.worker_id],
            set_={
                "device_us": FairShare.device_us * faded + new.excluded.device_us,
                "lines": FairShare.lines * faded + new.excluded.lines,
                "as_of": func.now(),
            },
        )
    )


def forget_served(session: Session) -> None:
    """Drop what has faded to nothing."""
    session.execute(delete(FairShare).where(FairShare.as_of < func.now() - _FORGOTTEN_AFTER))


def _ready_shard(suspect: bool, number: ColumnElement[int]) -> ColumnElement[int]:
    query = select(number).where(Shard.job_id == Job.id, *is_ready(JobModel.model_id, suspect))
    return query.correlate(Job, JobModel).scalar_subquery()


def _faded() -> ColumnElement[float]:
    """What is left now of a figure in a row."""
    # Never negative: a transaction's time may lie a little before a row that it finds.
    seconds = func.greatest(cast(func.extract("epoch", func.now() - FairShare.as_of), Float), 0.0)
    return cast(func.power(0.5, seconds / _HALVED_EVERY_SECONDS), Float)
