"""Draining a worker: it lives on with its model, finishes what it has begun, and leases nothing."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Model, Shard, Worker
from runner.domain.errors import NotFound
from runner.domain.ids import WORKER_PREFIX, WorkerId, encode
from runner.domain.states import LIVE_WORKER_STATES, ShardState
from runner.doorbell import Bell, ring
from runner.services.audit import record


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What may be shown of a live engine worker; times are microseconds since its start."""

    id: WorkerId
    host: str
    pid: int
    model: str | None
    state: str
    rows: int
    lines_in_hand: int
    busy_us: int
    idle_us: int
    load_us: int
    started_at: datetime
    drained_at: datetime | None


def list_workers(session: Session) -> list[WorkerRecord]:
    """The engine workers that live, in order of their start."""
    left = func.sum(func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed)
    in_hand = (
        select(func.coalesce(left, 0))
        .where(Shard.worker_id == Worker.id, Shard.state == ShardState.LEASED)
        .scalar_subquery()
    )
    query = (
        select(Worker, Model.name, in_hand)
        .outerjoin(Model, Model.id == Worker.model_id)
        .where(Worker.kind == "engine", Worker.state.in_(LIVE_WORKER_STATES))
        .order_by(Worker.id)
    )
    return [_record_of(row, name, int(lines)) for row, name, lines in session.execute(query)]


def drain_worker(session: Session, worker_id: UUID) -> None:
    """Have a worker lease nothing more; what it has not begun is given back within a second."""
    worker = _live(session, worker_id)
    if worker.drained_at is None:
        worker.drained_at = session.execute(select(func.now())).scalar_one()
        record(session, "worker.drain", encode(WORKER_PREFIX, worker.id))
        ring(session, Bell.WAKE)


def undrain_worker(session: Session, worker_id: UUID) -> None:
    """Let a drained worker lease again."""
    worker = _live(session, worker_id)
    if worker.drained_at is not None:
        worker.drained_at = None
        record(session, "worker.undrain", encode(WORKER_PREFIX, worker.id))
        ring(session, Bell.WAKE)


def _live(session: Session, worker_id: UUID) -> Worker:
    query = select(Worker).where(Worker.id == worker_id, Worker.kind == "engine")
    query = query.where(Worker.state.in_(LIVE_WORKER_STATES)).with_for_update()
    worker = session.scalars(query).one_or_none()
    if worker is None:
        name = encode(WORKER_PREFIX, worker_id)
        raise NotFound(f"No engine worker {name} lives; see: tokenmill workers ls.")
    return worker


def _record_of(row: Worker, model: str | None, lines: int) -> WorkerRecord:
    return WorkerRecord(
        id=WorkerId(row.id),
        host=row.host,
        pid=row.pid,
        model=model,
        state=row.state if row.drained_at is None else "drained",
        rows=row.rows,
        lines_in_hand=lines,
        busy_us=row.busy_us,
        idle_us=row.idle_us,
        load_us=row.load_us,
        started_at=row.started_at,
        drained_at=row.drained_at,
    )
