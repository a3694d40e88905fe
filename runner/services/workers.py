"""Worker processes: registered at each start, seen by heartbeats, ended or declared dead."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import Worker
from runner.domain.ids import ModelId, WorkerId, new_uuid
from runner.domain.lanes import Lane
from runner.domain.states import LIVE_WORKER_STATES, WorkerState
from runner.failpoints import FailPoint, hit
from runner.services.recovery import requeue_leases_of
from runner.services.worker_time import WorkerTimes, keep_day


@dataclass(frozen=True, slots=True)
class NewWorker:
    """One process start."""

    kind: str
    host: str
    pid: int
    model_id: ModelId | None = None


def register_worker(session: Session, new: NewWorker) -> WorkerId:
    """Note a new process; a row is never used again by another."""
    worker_id = WorkerId(new_uuid())
    session.add(
        Worker(
            id=worker_id,
            kind=new.kind,
            host=new.host,
            pid=new.pid,
            model_id=new.model_id,
            state=WorkerState.STARTING,
            # Not when the transaction began: choosing its model is no part of the worker's time.
            started_at=func.clock_timestamp(),
        )
    )
    return worker_id


def mark_ready(
    session: Session, worker_id: WorkerId, description: str, rows: int, lane: Lane
) -> None:
    """The model is loaded; the worker begins to lease."""
    session.execute(
        update(Worker)
        .where(Worker.id == worker_id, Worker.state == WorkerState.STARTING)
        .values(
            state=WorkerState.READY,
            description=description,
            rows=rows,
            lane=lane.name,
            lane_reason=lane.reason,
            last_seen_at=func.now(),
        )
    )


def beat(session: Session, worker_id: WorkerId, times: WorkerTimes, stats: dict[str, Any]) -> bool:
    """Note that a worker lives. False: it was declared dead meanwhile and must end."""
    seen = session.scalar(
        update(Worker)
        .where(Worker.id == worker_id, Worker.state.in_(LIVE_WORKER_STATES))
        .values(
            last_seen_at=func.now(),
            busy_us=times.busy_us,
            idle_us=times.idle_us,
            load_us=times.load_us,
            wasted_us=times.wasted_us,
            stats=stats,
        )
        .returning(Worker.id)
    )
    if seen is not None:
        keep_day(session, worker_id, times)
    hit(FailPoint.HEARTBEAT_BEFORE_COMMIT)
    return seen is not None


def end_worker(session: Session, worker_id: WorkerId, reason: str) -> None:
    """An orderly end: the worker has given back what it held."""
    session.execute(
        update(Worker)
        .where(Worker.id == worker_id, Worker.state.in_(LIVE_WORKER_STATES))
        .values(state=WorkerState.ENDED, ended_at=func.now(), end_reason=reason)
    )


def was_ready(session: Session, host: str, pid: int) -> bool:
    """Whether the latest worker of a process had loaded its model, living or dead."""
    query = select(Worker.rows > 0).where(Worker.host == host, Worker.pid == pid)
    return bool(session.scalar(query.order_by(Worker.id.desc()).limit(1)))


def report_dead(session: Session, host: str, pid: int) -> int:
    """A supervisor saw a process of this host end: free what it held, at once.

    Returns how many shards were freed. Harmless when the process had ended in order.
    """
    return _bury(session, "exited", Worker.host == host, Worker.pid == pid)


def bury_silent(session: Session, silent_seconds: float) -> int:
    """Declare dead every worker that has not been seen for so long; returns freed shards."""
    return _bury(session, "silent", Worker.last_seen_at < seconds_from_now(-silent_seconds))


def _bury(session: Session, reason: str, *conditions: ColumnElement[bool]) -> int:
    """Declare dead what still meets the conditions once its row is locked; frees its leases."""
    dead = session.scalars(
        update(Worker)
        .where(*conditions, Worker.state.in_(LIVE_WORKER_STATES))
        .values(state=WorkerState.DEAD, ended_at=func.now(), end_reason=reason)
        .returning(Worker.id)
    ).all()
    hit(FailPoint.DEATH_BEFORE_COMMIT)
    return sum(requeue_leases_of(session, worker_id) for worker_id in dead)
