"""Waking other processes, and no more than that.

A ring says "look at the database now". It is sent after the transaction that rang it has
committed, carries only ids, and may be lost: every receiver also looks by itself from time to time.
"""

from collections.abc import Callable
from uuid import UUID

from sqlalchemy import event
from sqlalchemy.orm import Session, sessionmaker

from runner.domain.rings import Bell, Ring
from runner.failpoints import FailPoint, hit

Send = Callable[[Ring], None]

_PENDING = "doorbell"
_FAIL_POINTS = {
    Bell.INGEST: FailPoint.RING_INGEST,
    Bell.FINALISE: FailPoint.RING_FINALISE,
    Bell.WAKE: FailPoint.RING_WAKE,
    Bell.CANCEL: FailPoint.RING_CANCEL,
}


def ring(session: Session, bell: Bell, job_id: UUID | None = None) -> None:
    """Ring once this session's transaction has committed; a rollback forgets it."""
    pending: list[Ring] = session.info.setdefault(_PENDING, [])
    message = Ring(bell, job_id)
    if message not in pending:
        pending.append(message)


def connect_doorbell(sessions: sessionmaker[Session], send: Send) -> None:
    """Have every session of a factory deliver its rings through ``send`` after commit."""

    # SQLAlchemy fires both events for savepoints too, before the transaction's own end.

    def deliver(session: Session) -> None:
        if session.in_nested_transaction():
            return
        for message in session.info.pop(_PENDING, []):
            point = _FAIL_POINTS.get(message.bell)
            if point is not None:  # a profile is no matter of any line
                hit(point)
            send(message)

    def forget(session: Session) -> None:
        if session.in_nested_transaction():
            return
        session.info.pop(_PENDING, None)

    event.listen(sessions, "after_commit", deliver)
    event.listen(sessions, "after_rollback", forget)
