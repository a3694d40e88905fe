"""Why a job waits, in words, and its place in the queue."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from runner.db.models import Job, JobModel, Model, Shard, Worker
from runner.domain.ids import ModelId
from runner.domain.run_hours import parse_run_hours
from runner.domain.states import LIVE_WORKER_STATES, JobState, ShardState, WorkerState
from runner.services.turns import turns

WAITING = "waiting"


@dataclass(frozen=True, slots=True)
class Wait:
    """What a job waits for, in sentences, and its place (1 is the next). ``is_whole``: none of its
    lines is in an engine; else only those of some of its models wait."""

    reason: str
    position: int | None = None
    is_whole: bool = True


def waits_of(session: Session, jobs: Sequence[Job]) -> dict[UUID, Wait]:
    """Those of some jobs that wait for an engine, or have lines of a model that no worker takes."""
    running = {job.id: job for job in jobs if job.state == JobState.IN_PROGRESS}
    idle = _idle_models(session, running)
    if not idle:
        return {}
    now = session.execute(select(func.now())).scalar_one()
    queues = {each: _Queue(session, each) for models in idle.values() for each in models.idle}
    waits = {}
    for job_id, models in idle.items():
        if models.is_whole:
            by_the_clock = next(_by_the_clock(running[job_id], now), None)
            waits[job_id] = by_the_clock or _wait([queues[each] for each in models.idle], job_id)
        elif lacks := [queues[each].lack for each in models.idle if queues[each].lack]:
            waits[job_id] = Wait(" ".join(map(str, lacks)), is_whole=False)
    return waits


@dataclass(slots=True)
class _Idle:
    """The models of a job that have lines to lease, none of which is leased."""

    idle: list[ModelId] = field(default_factory=list)
    is_whole: bool = True


def _idle_models(session: Session, job_ids: Collection[UUID]) -> dict[UUID, _Idle]:
    """Those of some running jobs that have such models."""
    if not job_ids:
        return {}
    is_open, is_leased = (
        select(Shard.shard_no)
        .where(
            Shard.job_id == JobModel.job_id,
            Shard.model_id == JobModel.model_id,
            Shard.state == state,
        )
        .exists()
        for state in (ShardState.OPEN, ShardState.LEASED)
    )
    query = select(JobModel.job_id, JobModel.model_id, is_open, is_leased)
    query = query.where(JobModel.job_id.in_(job_ids)).order_by(JobModel.model_id)
    found: dict[UUID, _Idle] = {}
    for job_id, model_id, has_open, has_leased in session.execute(query):
        each = found.setdefault(job_id, _Idle())
        each.is_whole &= not has_leased
        if has_open and not has_leased:
            each.idle.append(ModelId(model_id))
    return {job_id: each for job_id, each in found.items() if each.idle}


class _Queue:
    """The jobs that wait for a model, and why nobody serves it if that is so."""

    def __init__(self, session: Session, model_id: ModelId) -> None:
        self.lack = _lack_of_worker(session, model_id)
        self._order: list[UUID] = [job.id for job in turns(session, model_id).order()]

    def position(self, job_id: UUID) -> int | None:
        """The place of a job, from 1; None if none of its shards may be leased now."""
        return self._order.index(job_id) + 1 if job_id in self._order else None


def _wait(queues: Sequence[_Queue], job_id: UUID) -> Wait:
    """Of a job none of whose models is at work: where nobody serves one, and its best place."""
    reasons = [queue.lack for queue in queues if queue.lack is not None]
    served = [queue.position(job_id) for queue in queues if queue.lack is None]
    if served:
        reasons.append(_behind(min((each for each in served if each), default=None)))
    places = [place for queue in queues if (place := queue.position(job_id)) is not None]
    return Wait(" ".join(reasons), min(places, default=None))


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
    query = select(state, Worker.model_id, Worker.next_model_id).where(
        Worker.kind == "engine", Worker.state.in_(LIVE_WORKER_STATES)
    )
    workers = session.execute(query).all()
    states = {state for state, has, _ in workers if has == model_id}
    if WorkerState.READY in states:
        return None
    if WorkerState.STARTING in states:
        return f"A worker is loading {model.name}."
    if model_id in {coming for _, _, coming in workers}:
        return f"A worker finishes other lines and then loads {model.name}."
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
