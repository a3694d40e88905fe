"""Who has which model loaded, and who changes it.

Whoever chooses takes a lock until the choice is committed, so that of two workers that are free at
once only one goes for the same work.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select, text, update
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import Worker
from runner.domain.ids import ModelId, WorkerId
from runner.domain.residency import Demand, Residency, first_model, next_model
from runner.domain.states import LIVE_WORKER_STATES, WorkerState
from runner.services.models import ModelRecord, list_models
from runner.services.turns import turns_of, waiting_jobs
from runner.services.workers import NewWorker, end_worker, register_worker

_LOCK = 7_461_036  # of our advisory locks, the one on choices of models
_FAILED_FOR_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker that is registered for a model, and has to load it."""

    worker_id: WorkerId
    model: ModelRecord


def take_seat(session: Session, host: str, pid: int, names: Sequence[str]) -> Seat | None:
    """Register a starting engine worker for the model that it should load.

    That is the one with the most urgent waiting lines, first of all if nobody serves it. If nothing
    waits: of named models the first that nobody serves, else the oldest.

    Args:
        names: the models that it may serve, in order; none means all.

    Returns:
        None while none of them is registered.
    """
    _lock(session)
    models = _allowed(session, names)
    if not models:
        return None
    demands = _demands(session, models, host)
    chosen = first_model(demands)
    if chosen is None:
        served = _served(session) if names else {}
        chosen = min(models, key=lambda model_id: model_id in served)
    new = NewWorker("engine", host, pid, chosen)
    return Seat(register_worker(session, new), models[chosen])


def plan_switch(
    session: Session, worker_id: WorkerId, residency: Residency, names: Sequence[str]
) -> ModelRecord | None:
    """The model that a worker should load in place of its own; from now on it counts as served.

    None if it should stay, which is found without a lock, and while another chooses: whoever asks
    keeps leases alive, and must not wait for one that was stopped.
    """
    row = session.get_one(Worker, worker_id)
    models = _allowed(session, names)
    chosen = next_model(residency, _demands(session, models, row.host, worker_id))
    if chosen is None:
        _stay(session, row)
        return None
    if not _is_our_turn(session):
        return None
    chosen = next_model(residency, _demands(session, models, row.host, worker_id))
    if chosen is None:
        return None
    is_free = (Worker.state == WorkerState.READY, Worker.drained_at.is_(None))
    planned = session.scalar(
        update(Worker)
        .where(Worker.id == worker_id, *is_free)
        .values(next_model_id=chosen)
        .returning(Worker.id)
    )
    return None if planned is None else models[chosen]


def change_seat(session: Session, worker_id: WorkerId, model: ModelRecord) -> Seat:
    """End a worker that has given back everything, and register its process for another model.

    An operator's drain stays with the process.
    """
    row = session.get_one(Worker, worker_id)
    end_worker(session, worker_id, f"made room for {model.name}")
    new_id = register_worker(session, NewWorker(row.kind, row.host, row.pid, model.id))
    session.flush()
    session.get_one(Worker, new_id).drained_at = row.drained_at
    return Seat(new_id, model)


def _lock(session: Session) -> None:
    session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _is_our_turn(session: Session) -> bool:
    """The same lock, if nobody has it."""
    lock = text("SELECT pg_try_advisory_xact_lock(:lock)")
    return bool(session.scalar(lock, {"lock": _LOCK}))


def _stay(session: Session, row: Worker) -> None:
    """Take a plan back whose answer the worker never got: others would count on it for ever."""
    if row.next_model_id is not None:
        row.next_model_id = None
        session.flush()


def _allowed(session: Session, names: Sequence[str]) -> dict[ModelId, ModelRecord]:
    """The models that a worker may load: those named, in order, else all, the oldest first."""
    found = sorted(list_models(session), key=lambda model: model.created_at)
    if names:
        named = [model for model in found if model.name in names]
        found = sorted(named, key=lambda model: names.index(model.name))
    return {model.id: model for model in found}


def _demands(
    session: Session,
    models: dict[ModelId, ModelRecord],
    host: str,
    but: WorkerId | None = None,
) -> list[Demand]:
    """What waits for some models, as seen by a worker of a host (``but``)."""
    jobs = [
        job
        for suspect in (False, True)
        for job in waiting_jobs(session, None, suspect)
        if job.model_id in models
    ]
    if not jobs:
        return []
    turns = turns_of(session, jobs)
    ranks: dict[ModelId, int] = {}
    for rank, job in enumerate(turns.order()):
        ranks.setdefault(job.model_id, rank)
    served, failed = _served(session, but), _failed(session, host)
    return [
        Demand(
            model_id=model_id,
            rank=rank,
            workers=served.get(model_id, 0),
            seconds=sum(turns.seconds_of(job) for job in jobs if job.model_id == model_id),
            failed=model_id in failed,
        )
        for model_id, rank in ranks.items()
    ]


def _served(session: Session, but: WorkerId | None = None) -> dict[ModelId, int]:
    """How many workers have a model or are about to; one that makes room counts for its next."""
    model_id = func.coalesce(Worker.next_model_id, Worker.model_id)
    others: ColumnElement[bool] = Worker.kind == "engine"
    if but is not None:
        others &= Worker.id != but
    query = (
        select(model_id, func.count())
        .where(others, Worker.state.in_(LIVE_WORKER_STATES), Worker.drained_at.is_(None))
        .group_by(model_id)
    )
    return {ModelId(row[0]): row[1] for row in session.execute(query)}


def _failed(session: Session, host: str) -> set[ModelId]:
    """Models with which a worker of a host lately died before it was ready."""
    query = select(Worker.model_id).where(
        Worker.host == host,
        Worker.state == WorkerState.DEAD,
        Worker.rows == 0,
        Worker.model_id.is_not(None),
        Worker.ended_at > seconds_from_now(-_FAILED_FOR_SECONDS),
    )
    return {ModelId(model_id) for model_id in session.scalars(query) if model_id is not None}
