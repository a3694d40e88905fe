"""What happens to shards whose worker is gone.

A shard that loses its worker goes back in the queue. One that loses a second is suspected of
having killed both: it runs alone from then on, and is halved each time it kills again, until the
guilty line stands alone. It fails as ``engine_crash`` once it has lost two workers so: the first
may have gone for a reason of its own. Innocent halves complete on the way.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import ColumnElement, func, insert, or_, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Result, Shard, Worker, WorkItem
from runner.domain.answers import error_body, refusal_line
from runner.domain.ids import item_id
from runner.domain.rings import Bell
from runner.domain.states import LIVE_WORKER_STATES, JobState, ShardState
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit

_SUSPECT_AFTER = 2  # lost workers
_GUILTY_AFTER = 2  # lost workers while no other line was in the engine
_CRASH_MESSAGE = "The engine crashed each time this line ran, at last twice alone; it was given up."


def requeue_leases_of(session: Session, worker_id: UUID) -> int:
    """Free every shard a gone worker holds, whether or not its leases have lapsed."""
    return _requeue(session, Shard.worker_id == worker_id)


def requeue_expired_leases(session: Session) -> int:
    """Free every shard whose lease has lapsed: its worker is dead, stopped or cut off.

    Those of workers known to be gone go too. A last transaction of theirs may have held the locks
    of some when the death was told.
    """
    is_gone = select(Worker.id).where(
        Worker.id == Shard.worker_id, Worker.state.not_in(LIVE_WORKER_STATES)
    )
    return _requeue(session, or_(Shard.lease_expires_at < func.now(), is_gone.exists()))


def _requeue(session: Session, condition: ColumnElement[bool]) -> int:
    lost = (
        select(Shard)
        .where(Shard.state == ShardState.LEASED, condition)
        .order_by(Shard.job_id, Shard.shard_no)
        .with_for_update(skip_locked=True)
    )
    shards = session.scalars(lost).all()
    with session.no_autoflush:
        for shard in shards:
            _free(session, shard)
    session.flush()
    if shards:
        hit(FailPoint.REAP_BEFORE_COMMIT)
        ring(session, Bell.WAKE)
    return len(shards)


def _free(session: Session, shard: Shard) -> None:
    """Decide what becomes of one shard that lost its worker (its row is locked)."""
    job = session.get_one(Job, shard.job_id)
    if job.state != JobState.IN_PROGRESS:
        _move(shard, ShardState.DROPPED)
        ring(session, Bell.FINALISE, job.id)
    elif shard.suspect:
        _isolate(session, shard)
    else:
        if shard.attempt >= _SUSPECT_AFTER:
            shard.suspect = True
            shard.not_before = func.now()
        _move(shard, ShardState.OPEN)


def _move(shard: Shard, state: ShardState) -> None:
    """Out of the lost worker's hands."""
    shard.state, shard.worker_id, shard.lease_expires_at = state, None, None
    shard.reserved_nano = 0


def _isolate(session: Session, shard: Shard) -> None:
    """A suspect lost its worker again, and it was alone: halve it, or judge its only line."""
    left = _unfinished(session, shard)
    if len(left) == 1:
        _judge_alone(session, shard, left[0])
        return
    _move(shard, ShardState.SPLIT)
    session.flush()
    hit(FailPoint.REAP_BETWEEN_HALVES)
    # Another transaction may halve another shard of this job: they take turns to number.
    session.execute(select(Job.id).where(Job.id == shard.job_id).with_for_update())
    next_no = session.scalar(
        select(func.max(Shard.shard_no) + 1).where(Shard.job_id == shard.job_id)
    )
    middle = len(left) // 2
    halves = enumerate((left[:middle], left[middle:]), start=next_no or 0)
    session.execute(
        insert(Shard).values(
            [
                {
                    "job_id": shard.job_id,
                    "shard_no": shard_no,
                    "model_id": shard.model_id,
                    "price_id": shard.price_id,
                    "idx": list(idx),
                    "state": ShardState.OPEN,
                    "attempt": shard.attempt,
                    "suspect": True,
                    "not_before": func.now(),
                }
                for shard_no, idx in halves
            ]
        ),
    )


def _judge_alone(session: Session, shard: Shard, idx: int) -> None:
    """Only this line ran when the worker went. Once may be chance (a deploy, a lack of memory)
    that met an innocent; twice is taken for proof."""
    shard.alone_losses += 1
    if shard.alone_losses >= _GUILTY_AFTER:
        _give_up(session, shard, idx)
    else:
        shard.not_before = func.now()
        _move(shard, ShardState.OPEN)


def _unfinished(session: Session, shard: Shard) -> Sequence[int]:
    done = session.scalars(
        select(Result.idx).where(
            Result.job_id == shard.job_id, Result.idx == func.any(list(shard.idx))
        )
    )
    finished = set(done)
    return [idx for idx in shard.idx if idx not in finished]


def _give_up(session: Session, shard: Shard, idx: int) -> None:
    custom_id = session.scalars(
        select(WorkItem.custom_id).where(WorkItem.job_id == shard.job_id, WorkItem.idx == idx)
    ).one()
    line = refusal_line(
        item_id(shard.job_id, idx),
        custom_id,
        500,
        error_body(500, _CRASH_MESSAGE, "engine_crash", None),
    )
    session.execute(
        insert(Result).values(
            job_id=shard.job_id, idx=idx, failed=True, epoch=shard.epoch, line=line
        )
    )
    shard.failed += 1
    _move(shard, ShardState.DONE)
