"""Why a job waits, in words, and its place in the queue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Model, Shard, Worker
from runner.domain.ids import ModelId
from runner.domain.run_hours import parse_run_hours
from runner.domain.states import LIVE_WORKER_STATES, JobState, ShardState, WorkerState
from runner.services.turns import turns

WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Wait:
    """A job none of whose lines is in an engine: the reason, and its place (1 is the next)."""

    reason: str
    position: int | None = None


def waits_of(session: Session, jobs: Sequence[Job]) -> dict[UUID, Wait]:
    """Those of some jobs that wait for an engine, and why."""
    idle = _idle(session, [job for job in jobs if job.state == JobState.IN_PROGRESS])
    if not idle:
        return {}
    now = session.execute(select(func.now())).scalar_one()
    waits = {job.id: wait for job in idle for wait in _by_the_clock(job, now)}
    ready = [job for job in idle if job.id not in waits]
    for model_id in {ModelId(job.model_id) for job in ready if job.model_id is not None}:
        order: list[UUID] = [job.id for job in turns(session, model_id).order()]
        lack = _lack_of_worker(session, model_id)
        for job in ready:
            if job.model_id == model_id:
                position = order.index(job.id) + 1 if job.id in order else None
                waits[job.id] = Wait(lack or _behind(position), position)
    return waits


def _idle(session: Session, jobs: Sequence[Job]) -> list[Job]:
    """Jobs with open shards, none of which is leased."""
    if not jobs:
        return []
    found: dict[str, set[UUID]] = {}
    for state in (ShardState.OPEN, ShardState.LEASED):
        some = select(Shard.shard_no).where(Shard.job_id == Job.id, Shard.state == state)
        query = select(Job.id).where(Job.id.in_([job.id for job in jobs]), some.exists())
        found[state] = set(session.scalars(query))
    idle = found[ShardState.OPEN] - found[ShardState.LEASED]
    return [job for job in jobs if job.id in idle]


def _by_the_clock(job: Job, now: datetime) -> Iterator[Wait]:
    """The time that a job waits for, if it does."""
    start = job.start_after if job.start_after is not None and job.start_after > now else None
    hours = None if job.run_hours is None else parse_run_hours(job.run_hours)
    opens = now if start is None else start
    if hours is not None and not hours.is_open(opens):
        zone = hours.zone
        until = hours.opens_at(opens).astimezone(zone)
        yield Wait(f"Outside its hours ({hours}) until {until:%Y-%m-%d %H:%M} {zone.key}.")
    elif start is not None:
        yield Wait(f"Starts after {start:%Y-%m-%d %H:%M:%S} UTC.")


def _lack_of_worker(session: Session, model_id: ModelId) -> str | None:
    """Why no worker takes lines of a model now; None if one may."""
    model = session.get_one(Model, model_id)
    if model.retired_at is not None:
        return f"The model {model.name} is not installed any more."
    is_drained = Worker.drained_at.is_not(None)
    state = case((is_drained, WorkerState.DRAINING), else_=Worker.state)
    query = select(state, Worker.model_id == model_id).where(
        Worker.kind == "engine", Worker.state.in_(LIVE_WORKER_STATES)
    )
    workers = session.execute(query).all()
    states = {state for state, serves in workers if serves}
    if WorkerState.READY in states:
        return None
    if WorkerState.STARTING in states:
        return f"A worker is loading {model.name}."
    if WorkerState.DRAINING in states:
        return f"The workers of {model.name} take no more lines: they drain."
    if workers:
        return f"Waiting for a worker of {model.name}; those that run have another model loaded."
    return f"Waiting for a worker of {model.name}; none runs."


def _behind(position: int | None) -> str:
    if position is None:
        return "Waiting until a shard may be tried again."
    if position == 1:
        return "Next: waiting for room in a worker."
    others = position - 1
    return f"Behind {others:,} job{'' if others == 1 else 's'}."
