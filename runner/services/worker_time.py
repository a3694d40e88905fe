"""The account of device time: where each engine worker's wall time went.

Lines that were accepted have shares of it, which the ledger holds too. The rest is idle, load, or
waste: attempts that came to nothing, and what a worker that died did after it was last heard.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from uuid import UUID

from sqlalchemy import BigInteger, Date, cast, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import JobWaste, Worker, WorkerDay
from runner.domain.ids import WorkerId
from runner.domain.states import WorkerState


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """Where a worker's wall time went, in microseconds.

    ``busy_us`` is the step loop's: of it, ``shared_us`` went to lines that were accepted and
    ``wasted_us`` to attempts that were not; the difference is of lines in the engine.
    """

    busy_us: int = 0
    idle_us: int = 0
    load_us: int = 0
    wasted_us: int = 0
    shared_us: int = 0


@dataclass(frozen=True, slots=True)
class Wasted:
    """What one worker spent on one job for nothing since it started."""

    attempts: int = 0
    device_us: int = 0


@dataclass(frozen=True, slots=True)
class WorkerAccount:
    """One worker's time by the database's clock; the parts are the worker's own measurements."""

    worker_id: WorkerId
    state: str
    wall_us: int
    shared_us: int
    idle_us: int
    load_us: int
    wasted_us: int

    @property
    def gap(self) -> float:
        """The share of wall time that no part accounts for: of a living worker, mostly of lines
        that are still in its engine."""
        parts = self.shared_us + self.idle_us + self.load_us + self.wasted_us
        return (self.wall_us - parts) / self.wall_us if self.wall_us else 0.0


_PARTS = ("shared_us", "idle_us", "load_us", "wasted_us")


def keep_day(session: Session, worker_id: WorkerId, times: WorkerTimes) -> None:
    """Add to a worker's present UTC day what its times, summed since its start, say beyond the
    days before. Repeating it is harmless."""
    today = cast(func.timezone("UTC", func.now()), Date)
    before = [
        select(func.coalesce(func.sum(WorkerDay.__table__.c[part]), 0))
        .where(WorkerDay.worker_id == worker_id, WorkerDay.day < today)
        .scalar_subquery()
        for part in _PARTS
    ]
    values = {
        part: cast(getattr(times, part), BigInteger) - earlier
        for part, earlier in zip(_PARTS, before, strict=True)
    }
    statement = insert(WorkerDay).values(worker_id=worker_id, day=today, **values)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("worker_id", "day"),
            set_={part: statement.excluded[part] for part in _PARTS},
        )
    )


def keep_waste(session: Session, worker_id: WorkerId, waste: Mapping[UUID, Wasted]) -> None:
    """Keep what a worker has spent on jobs for nothing, each summed since it started."""
    if not waste:
        return
    rows = [
        {
            "job_id": job_id,
            "worker_id": worker_id,
            "attempts": spent.attempts,
            "device_us": spent.device_us,
        }
        for job_id, spent in sorted(waste.items())
    ]
    statement = insert(JobWaste).values(rows)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("job_id", "worker_id"),
            set_={name: statement.excluded[name] for name in ("attempts", "device_us")},
        )
    )


def worker_accounts(session: Session, first: date | None = None) -> list[WorkerAccount]:
    """The accounts of engine workers that were heard on a day or later, the newest first.

    What a dead worker did after its last heartbeat is counted as wasted, but for what it committed.
    """
    sums = [func.sum(WorkerDay.__table__.c[part]) for part in _PARTS]
    until = func.coalesce(Worker.ended_at, Worker.last_seen_at)
    wall = func.extract("epoch", until - Worker.started_at) * 1_000_000
    query = (
        select(Worker.id, Worker.state, wall, *sums)
        .join(WorkerDay, WorkerDay.worker_id == Worker.id)
        .group_by(Worker.id)
        .order_by(Worker.id.desc())
    )
    if first is not None:
        query = query.having(func.max(WorkerDay.day) >= first)
    return [_account(*row) for row in session.execute(query)]


def _account(worker_id: UUID, state: str, wall: float, *parts: int) -> WorkerAccount:
    wall_us, (shared, idle, load, wasted) = round(wall), map(int, parts)
    if state == WorkerState.DEAD:
        wasted = max(wasted, wall_us - shared - idle - load)
    return WorkerAccount(WorkerId(worker_id), state, wall_us, shared, idle, load, wasted)
