"""Profiles: an operator asks, one engine worker records, the operator fetches the trace.

The trace passes through the database, so that the worker may be on another host; it leaves the
database when it is fetched, and after an hour in any case.
"""

from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from sqlalchemy import CursorResult, delete, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import Model, Profile, Worker
from runner.domain.errors import InvalidRequest, NotFound, RunnerError, StateConflict
from runner.domain.ids import WORKER_PREFIX, WorkerId, encode
from runner.domain.rings import Bell
from runner.domain.states import LIVE_WORKER_STATES, WorkerState
from runner.doorbell import ring
from runner.services import audit

MAX_STEPS = 100
MAX_TRACE_BYTES = 64 * 1024**2
_KEPT = timedelta(hours=1)


class ProfileFailed(RunnerError):
    """There will be no trace; the sentence says why."""

    code = "profile_failed"


@dataclass(frozen=True, slots=True)
class EngineWorkerRecord:
    """A live engine worker, as a choice to profile."""

    id: WorkerId
    host: str
    pid: int
    model: str | None
    state: str


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is to record: ``steps`` steps, within ``seconds``."""

    id: UUID
    steps: int
    seconds: float


def live_engine_workers(session: Session) -> list[EngineWorkerRecord]:
    """Every engine worker that lives, in order of their start."""
    query = (
        select(Worker.id, Worker.host, Worker.pid, Model.name, Worker.state)
        .outerjoin(Model, Model.id == Worker.model_id)
        .where(Worker.kind == "engine", Worker.state.in_(LIVE_WORKER_STATES))
        .order_by(Worker.id)
    )
    return [EngineWorkerRecord(WorkerId(row[0]), *row[1:]) for row in session.execute(query)]


def ask(session: Session, worker_id: WorkerId, steps: int, seconds: float) -> UUID:
    """Order a profile of a worker's next steps; returns the order's id.

    Raises:
        InvalidRequest: too many or too few steps.
        NotFound: no such engine worker lives.
        StateConflict: it loads or drains, or is being profiled already.
    """
    if not 1 <= steps <= MAX_STEPS:
        raise InvalidRequest(f"A profile has 1 to {MAX_STEPS} steps.", param="steps")
    name = encode(WORKER_PREFIX, worker_id)
    worker = session.get(Worker, worker_id)
    if worker is None or worker.kind != "engine" or worker.state not in LIVE_WORKER_STATES:
        raise NotFound(f"No engine worker {name} lives.", param="worker")
    if worker.state != WorkerState.READY:
        raise StateConflict(
            f"{name} is {worker.state}; only a worker that is ready can be profiled."
        )
    session.execute(
        delete(Profile).where(Profile.worker_id == worker_id, Profile.expires_at < func.now())
    )
    profile = Profile(worker_id=worker_id, steps=steps, expires_at=seconds_from_now(seconds))
    try:
        with session.begin_nested():
            session.add(profile)
    except IntegrityError:
        raise StateConflict(f"{name} is being profiled already; try again afterwards.") from None
    audit.record(session, "profile.ask", name, detail={"steps": steps})
    ring(session, Bell.PROFILE)
    return profile.id


def take_order(session: Session, worker_id: WorkerId) -> Order | None:
    """The order that waits for a worker, which is then being served."""
    row = session.execute(
        update(Profile)
        .where(
            Profile.worker_id == worker_id,
            Profile.state == "asked",
            Profile.expires_at > func.now(),
        )
        .values(state="taken")
        .returning(
            Profile.id, Profile.steps, func.extract("epoch", Profile.expires_at - func.now())
        )
    ).one_or_none()
    return None if row is None else Order(row[0], row[1], float(row[2]))


def note_begun(session: Session, profile_id: UUID) -> None:
    """The worker had work, and records."""
    session.execute(
        update(Profile)
        .where(Profile.id == profile_id, Profile.state == "taken")
        .values(state="recording")
    )


def finish(session: Session, profile_id: UUID, trace: bytes, steps_done: int) -> None:
    """Store a trace; nobody may be left who waits for it."""
    session.execute(
        update(Profile)
        .where(Profile.id == profile_id)
        .values(state="done", trace=trace, steps_done=steps_done)
    )


def fail(session: Session, profile_id: UUID, problem: str) -> None:
    """Say why there is no trace."""
    session.execute(
        update(Profile).where(Profile.id == profile_id).values(state="failed", problem=problem)
    )


def state_of(session: Session, profile_id: UUID) -> str:
    """How far an order has come: asked, taken, recording or done.

    Raises:
        ProfileFailed: it has failed, or its worker has gone.
    """
    row = session.execute(
        select(Profile.state, Profile.problem, Worker.state, Worker.end_reason)
        .join(Worker, Worker.id == Profile.worker_id)
        .where(Profile.id == profile_id)
    ).one_or_none()
    if row is None:
        raise ProfileFailed("The order is gone: it was withdrawn, or is too old.")
    state, problem, worker_state, reason = row
    if state == "failed":
        raise ProfileFailed(str(problem))
    if state != "done" and worker_state not in LIVE_WORKER_STATES:
        raise ProfileFailed(
            f"The worker has gone ({reason}) before its profile was done; "
            "ask the one that was started in its place."
        )
    return str(state)


def fetch(session: Session, profile_id: UUID) -> tuple[bytes, int]:
    """Take the trace of an order that is done out of the database, with its number of steps."""
    row = session.execute(
        delete(Profile)
        .where(Profile.id == profile_id, Profile.state == "done")
        .returning(Profile.trace, Profile.steps_done)
    ).one()
    assert row[0] is not None
    return row[0], row[1]


def withdraw(session: Session, profile_id: UUID) -> None:
    """Forget an order; a worker that serves it finds nobody to tell."""
    session.execute(delete(Profile).where(Profile.id == profile_id))


def purge_profiles(session: Session) -> int:
    """Drop what nobody has fetched."""
    done: CursorResult[object] = session.execute(  # type: ignore[assignment]
        delete(Profile).where(Profile.created_at < func.now() - _KEPT)
    )
    return done.rowcount
