"""The state of the whole installation in a few numbers, for Prometheus; nothing of one project."""

from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Shard, Worker
from runner.domain.states import LIVE_JOB_STATES, LIVE_WORKER_STATES, JobState, ShardState


@dataclass(frozen=True, slots=True)
class Gauges:
    """Counts of now. ``oldest_job_seconds`` is the age of the oldest job that has not ended."""

    jobs: dict[str, int]
    pending_lines: int
    running_lines: int
    workers: dict[tuple[str, str], int]  # (kind, state)
    stale_results: int
    oldest_job_seconds: float


def read_gauges(session: Session) -> Gauges:
    """A reading; it touches only shards that are open, leased or following, by their indexes."""
    jobs = dict.fromkeys(map(str, JobState), 0)
    for state, count in session.execute(select(Job.state, func.count()).group_by(Job.state)):
        jobs[state] = count
    workers = session.execute(
        select(Worker.kind, Worker.state, func.count())
        .where(Worker.state.in_(LIVE_WORKER_STATES))
        .group_by(Worker.kind, Worker.state)
    )
    age = func.extract("epoch", func.now() - func.min(Job.created_at))
    oldest = session.scalar(select(age).where(Job.state.in_(LIVE_JOB_STATES)))
    stale = session.scalar(select(func.coalesce(func.sum(Worker.stale_results), 0)))
    return Gauges(
        jobs=jobs,
        pending_lines=_lines(session, ShardState.OPEN) + _lines(session, ShardState.FOLLOWING),
        running_lines=_lines(session, ShardState.LEASED),
        workers={(row[0], row[1]): row[2] for row in workers},
        stale_results=int(stale or 0),
        oldest_job_seconds=float(oldest or 0),
    )


def _lines(session: Session, state: ShardState) -> int:
    left = func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed
    live = select(Job.id).where(Job.state.in_(LIVE_JOB_STATES))
    query = select(func.coalesce(func.sum(left), 0))
    return int(session.scalar(query.where(Shard.job_id.in_(live), Shard.state == state)) or 0)
