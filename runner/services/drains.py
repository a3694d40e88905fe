"""Draining a worker: it lives on with its model, finishes what it has begun, and leases nothing."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from runner.db.models import Model, Shard, Worker
from runner.domain.errors import NotFound
from runner.domain.ids import WORKER_PREFIX, WorkerId, encode
from runner.domain.lanes import Lane
from runner.domain.rings import Bell
from runner.domain.states import LIVE_WORKER_STATES, ShardState
from runner.doorbell import ring
from runner.services.audit import record
from runner.services.keys import Caller


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """What may be shown of a live engine worker; times are microseconds since its start.

    Attributes:
        next_model: what it makes room for.
        rows: sequences it runs at once, of which ``rows_in_use`` were taken at its last heartbeat.
        lines_in_hand: those that it has leased and not committed.
        lines_per_s: what it committed from one heartbeat to the next, likewise its output tokens;
            None until it has told.
        silent_us: since it was last heard, by the database's clock.
    """

    id: WorkerId
    host: str
    pid: int
    model: str | None
    next_model: str | None
    state: str
    lane: Lane
    rows: int
    rows_in_use: int
    lines_in_hand: int
    lines_per_s: float | None
    output_tokens_per_s: float | None
    busy_us: int
    idle_us: int
    load_us: int
    started_at: datetime
    last_seen_at: datetime
    silent_us: int
    drained_at: datetime | None


def list_workers(session: Session) -> list[WorkerRecord]:
    """The engine workers that live, in order of their start."""
    left = func.sum(func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed)
    in_hand = (
        select(func.coalesce(left, 0))
        .where(Shard.worker_id == Worker.id, Shard.state == ShardState.LEASED)
        .scalar_subquery()
    )
    coming = aliased(Model)
    query = (
        select(Worker, Model.name, coming.name, in_hand, func.now())
        .outerjoin(Model, Model.id == Worker.model_id)
        .outerjoin(coming, coming.id == Worker.next_model_id)
        .where(Worker.kind == "engine", Worker.state.in_(LIVE_WORKER_STATES))
        .order_by(Worker.id)
    )
    return [_record_of(*row) for row in session.execute(query)]


def get_worker(session: Session, worker_id: UUID) -> WorkerRecord:
    """A live engine worker.

    Raises:
        NotFound: there is none of that id.
    """
    for worker in list_workers(session):
        if worker.id == worker_id:
            return worker
    raise _unknown(worker_id)


def drain_worker(session: Session, worker_id: UUID, by: Caller | None = None) -> None:
    """Have a worker lease nothing more; what it has not begun is given back within a second.

    ``by`` is whoever asked, unless it was the command line.
    """
    worker = _live(session, worker_id)
    if worker.drained_at is None:
        worker.drained_at = session.execute(select(func.now())).scalar_one()
        _tell(session, "worker.drain", worker, by)


def undrain_worker(session: Session, worker_id: UUID, by: Caller | None = None) -> None:
    """Let a drained worker lease again."""
    worker = _live(session, worker_id)
    if worker.drained_at is not None:
        worker.drained_at = None
        _tell(session, "worker.undrain", worker, by)


def _tell(session: Session, action: str, worker: Worker, by: Caller | None) -> None:
    detail = None if by is None else {"api_key_id": str(by.api_key_id)}
    record(session, action, encode(WORKER_PREFIX, worker.id), detail=detail)
    ring(session, Bell.WAKE)


def _live(session: Session, worker_id: UUID) -> Worker:
    query = select(Worker).where(Worker.id == worker_id, Worker.kind == "engine")
    query = query.where(Worker.state.in_(LIVE_WORKER_STATES)).with_for_update()
    worker = session.scalars(query).one_or_none()
    if worker is None:
        raise _unknown(worker_id)
    return worker


def _unknown(worker_id: UUID) -> NotFound:
    name = encode(WORKER_PREFIX, worker_id)
    return NotFound(f"No engine worker {name} lives; see: tokenmill workers ls.", param="worker_id")


def _record_of(
    row: Worker, model: str | None, after: str | None, lines: int, now: datetime
) -> WorkerRecord:
    return WorkerRecord(
        id=WorkerId(row.id),
        host=row.host,
        pid=row.pid,
        model=model,
        next_model=after,
        state=row.state if row.drained_at is None else "drained",
        lane=Lane(row.lane, row.lane_reason),
        rows=row.rows,
        rows_in_use=int(row.stats.get("running", 0)),
        lines_in_hand=int(lines),
        lines_per_s=row.stats.get("lines_per_s"),
        output_tokens_per_s=row.stats.get("output_tokens_per_s"),
        busy_us=row.busy_us,
        idle_us=row.idle_us,
        load_us=row.load_us,
        started_at=row.started_at,
        last_seen_at=row.last_seen_at,
        silent_us=max(0, round((now - row.last_seen_at).total_seconds() * 1e6)),
        drained_at=row.drained_at,
    )
