"""What a restored database needs before anybody works on it: its workers are elsewhere, or gone."""

from datetime import datetime

from sqlalchemy import func, update
from sqlalchemy.orm import Session

from runner.db.models import Job, Worker
from runner.domain.states import LIVE_JOB_STATES, LIVE_WORKER_STATES, WorkerState
from runner.services.audit import record
from runner.services.leases import give_back_all


def settle(session: Session, made_at: datetime) -> None:
    """Free every lease without penalty, end every worker, and let deadlines have stood still.

    Time that passed since the backup was made (``made_at``) is nobody's: a job keeps what it had
    left of its window. That of a paused job stands still until it is resumed anyhow.
    """
    freed = give_back_all(session)
    session.execute(
        update(Worker)
        .where(Worker.state.in_(LIVE_WORKER_STATES))
        .values(state=WorkerState.ENDED, ended_at=Worker.last_seen_at, end_reason="restored")
    )
    session.execute(
        update(Job)
        .where(Job.state.in_(LIVE_JOB_STATES), Job.paused_at.is_(None))
        .values(expires_at=Job.expires_at + (func.now() - made_at))
    )
    told = {"made_at": made_at.isoformat(), "freed_shards": freed}
    record(session, "installation.restore", "installation", detail=told)
