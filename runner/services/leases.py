"""Leasing shards to workers: claim, renew, look, and give back.

Every statement repeats the fence (worker, epoch, state), and only the database's clock counts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, case, func, select, tuple_, update
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import Job, Price, Shard, Worker
from runner.domain.defaults import Defaults
from runner.domain.ids import ApiKeyId, FileId, JobId, ModelId, ProjectId, WorkerId
from runner.domain.leases import Lease, ShardKey
from runner.domain.states import LIVE_WORKER_STATES, JobState, PauseReason, ShardState
from runner.failpoints import FailPoint, hit
from runner.services.allowances import Payers, allowance_of, take_turns
from runner.services.job_models import names
from runner.services.models import price_of
from runner.services.turns import is_ready, may_lease, turns, waiting_jobs

_SUSPECT_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Claim:
    """What a worker asks for. ``holds`` tells whether it has leases already.

    With ``above`` it wants lines of a higher priority than that only.
    """

    worker_id: WorkerId
    model_id: ModelId
    shards: int
    lease_seconds: float
    holds: bool
    above: int | None = None


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How many shards of a job, and whether suspects or others."""

    shards: int
    suspect: bool


@dataclass(frozen=True, slots=True)
class Standing:
    """How a worker's leases stand: those still live, and what it had better do about them."""

    live: frozenset[ShardKey]
    ended: frozenset[ShardKey]  # live, but their job was cancelled or has expired
    paused: frozenset[ShardKey]  # live, but somebody paused their job
    priorities: Mapping[ShardKey, int]  # of all that is live, as their jobs have them now
    urgent_above: int | None  # work of a higher priority than this waits: give back what can be
    suspect_waits: bool  # take no more until all is finished, then the suspect alone
    drain: bool
    drained: bool = False  # an operator wants it to live on and lease nothing


def claim_shards(session: Session, claim: Claim) -> list[Lease]:
    """Lease the next shards of the most deserving jobs of a model.

    A suspect shard (one that was twice there when a worker died) is leased only alone, so that no
    other line shares the engine with it.
    """
    if not _lives(session, claim.worker_id):
        return []
    payers = take_turns(session, claim.model_id)
    if not claim.holds:
        for job in turns(session, claim.model_id, suspect=True).order():
            alone = _take(session, claim, job.id, _Wanted(1, suspect=True), payers)
            if alone:  # else another worker has just taken it
                return alone
    queue = turns(session, claim.model_id, above=claim.above)
    wanted = Counter(queue.hand_out(claim.shards))
    leases: list[Lease] = []
    for job_id, shards in wanted.items():
        share = _tail_share(session, claim.model_id, job_id, shards)
        leases += _take(session, claim, job_id, _Wanted(share, suspect=False), payers)
    for job in queue.order():  # in place of what others took meanwhile, and of tails
        left = claim.shards - len(leases)
        if left > 0 and job.id not in wanted:
            share = _tail_share(session, claim.model_id, job.id, left)
            leases += _take(session, claim, job.id, _Wanted(share, suspect=False), payers)
    return leases


def renew_leases(
    session: Session, worker_id: WorkerId, keys: Iterable[ShardKey], lease_seconds: float
) -> None:
    """The heartbeat: extend the leases in a worker's hands that have not lapsed.

    One that it does not know of, because the answer to its claim was lost, is left to run out.
    """
    live = lock_live(session, worker_id, set(keys))
    session.execute(
        update(Shard)
        .where(
            Shard.job_id.in_({key.job_id for key in live}),
            tuple_(Shard.job_id, Shard.shard_no).in_([(key.job_id, key.shard_no) for key in live]),
        )
        .values(lease_expires_at=seconds_from_now(lease_seconds))
        .execution_options(synchronize_session=False)
    )


def revive_leases(
    session: Session, worker_id: WorkerId, keys: Iterable[ShardKey], lease_seconds: float
) -> None:
    """After an outage: take up again what lapsed while nobody could renew it.

    A lease that was freed since is left alone: its state, worker or epoch is another by now.
    """
    for key in sorted(keys, key=lambda key: (key.job_id, key.shard_no)):  # as others lock them
        session.execute(
            update(Shard)
            .where(*held_by(worker_id, key))
            .values(lease_expires_at=seconds_from_now(lease_seconds))
        )


def lock_live(session: Session, worker_id: WorkerId, keys: set[ShardKey]) -> dict[ShardKey, int]:
    """Lock the shards whose lease is live; tells how many lines each still lacks.

    This is the whole fence: the epoch, the worker, the state, and the database's clock.
    """
    places = [(key.job_id, key.shard_no, key.epoch) for key in keys]
    query = (
        select(
            Shard.job_id,
            Shard.shard_no,
            Shard.epoch,
            func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed,
        )
        .where(
            Shard.job_id.in_({key.job_id for key in keys}),
            tuple_(Shard.job_id, Shard.shard_no, Shard.epoch).in_(places),
            Shard.worker_id == worker_id,
            Shard.state == ShardState.LEASED,
            Shard.lease_expires_at > func.clock_timestamp(),
        )
        .order_by(Shard.job_id, Shard.shard_no)
        .with_for_update()
    )
    return {
        ShardKey(JobId(job_id), shard_no, epoch): count
        for job_id, shard_no, epoch, count in session.execute(query)
    }


def look_at_leases(session: Session, worker_id: WorkerId, model_id: ModelId) -> Standing:
    """The control query of a worker, cheap enough for twice a second."""
    mine = session.execute(
        select(Shard.job_id, Shard.shard_no, Shard.epoch, Job.state, Job.priority, Job.pause_reason)
        .join(Job, Job.id == Shard.job_id)
        .where(
            Shard.worker_id == worker_id,
            Shard.state == ShardState.LEASED,
            Shard.lease_expires_at > func.now(),
        )
    ).all()
    keys = {ShardKey(JobId(row.job_id), row.shard_no, row.epoch): row for row in mine}
    lowest = min((row.priority for row in mine), default=None)
    worker = session.execute(
        select(Worker.state, Worker.drained_at).where(Worker.id == worker_id)
    ).one_or_none()
    return Standing(
        live=frozenset(keys),
        ended=frozenset(key for key, row in keys.items() if row.state != JobState.IN_PROGRESS),
        # A budget's stop waits for what is leased: the money for it is there.
        paused=frozenset(key for key, row in keys.items() if row.pause_reason == PauseReason.USER),
        priorities={key: row.priority for key, row in keys.items()},
        urgent_above=lowest if _waits_above(session, model_id, lowest) else None,
        suspect_waits=_suspect_waits(session, model_id),
        drain=worker is not None and worker.state == "draining",
        drained=worker is not None and worker.drained_at is not None,
    )


def give_back(session: Session, worker_id: WorkerId, keys: Iterable[ShardKey]) -> None:
    """Return leases unfinished and without penalty; shards of an ended job are dropped."""
    for key in sorted(keys, key=lambda key: (key.job_id, key.shard_no)):  # as others lock them
        session.execute(update(Shard).where(*held_by(worker_id, key)).values(_returned()))
    hit(FailPoint.GIVE_BACK_BEFORE_COMMIT)


def give_back_all(session: Session) -> int:
    """Return every lease there is, without penalty, where no worker lives; counts them."""
    held = update(Shard).where(Shard.state == ShardState.LEASED).values(_returned())
    return len(session.scalars(held.returning(Shard.shard_no)).all())


def _returned() -> dict[str, Any]:
    """A shard out of its worker's hands, as if it had not been leased."""
    is_running = (
        select(Job.id).where(Job.id == Shard.job_id, Job.state == JobState.IN_PROGRESS).exists()
    )
    return {
        "state": case((is_running, ShardState.OPEN), else_=ShardState.DROPPED),
        "attempt": Shard.attempt - 1,
        "worker_id": None,
        "lease_expires_at": None,
        "reserved_nano": 0,
    }


def held_by(worker_id: WorkerId, key: ShardKey) -> tuple[ColumnElement[bool], ...]:
    """The fence: this very lease, still in this worker's hands."""
    return (
        Shard.job_id == key.job_id,
        Shard.shard_no == key.shard_no,
        Shard.epoch == key.epoch,
        Shard.worker_id == worker_id,
        Shard.state == ShardState.LEASED,
    )


def _lives(session: Session, worker_id: WorkerId) -> bool:
    """A worker that was declared dead may run on for a while; it gets nothing more, nor does one
    that an operator drains."""
    query = select(Worker.id).where(
        Worker.id == worker_id,
        Worker.state.in_(LIVE_WORKER_STATES),
        Worker.drained_at.is_(None),
    )
    return session.scalar(query) is not None


def _tail_share(session: Session, model_id: ModelId, job_id: UUID, shards: int) -> int:
    """At most half of an even split of what is left, so that no worker sits on the tail."""
    workers = session.scalar(
        select(func.count()).where(
            Worker.model_id == model_id,
            Worker.state.in_(LIVE_WORKER_STATES),
            Worker.drained_at.is_(None),
        )
    )
    if workers is None or workers < 2:
        return shards
    enough = 2 * workers * shards
    some = select(Shard.shard_no).where(Shard.job_id == job_id, *is_ready(model_id, False))
    left = session.scalar(select(func.count()).select_from(some.limit(enough).subquery())) or 0
    return max(1, min(shards, left // (2 * workers)))


def _take(
    session: Session, claim: Claim, job_id: UUID, wanted: _Wanted, payers: Payers
) -> list[Lease]:
    """Lease the next ready shards of a job; of a limited one, what its limits bear."""
    job = session.get_one(Job, job_id)
    picked = (
        select(Shard)
        .where(Shard.job_id == job_id, *is_ready(claim.model_id, wanted.suspect))
        .order_by(Shard.shard_no)
        .limit(wanted.shards)
        .with_for_update(skip_locked=True)
    )
    allowance = allowance_of(session, job) if payers.has_limits(job) else None
    if allowance is None:
        numbers = picked.with_only_columns(Shard.shard_no).cte("picked")
        return _lease(session, claim, job, Shard.shard_no == numbers.c.shard_no, {})
    if job.project_id not in payers.ours:  # another claim has its turn; the next one may
        return []
    bounds = allowance.reserve(session.scalars(picked).all())
    return _lease(session, claim, job, Shard.shard_no.in_(bounds), bounds) if bounds else []


def _lease(
    session: Session,
    claim: Claim,
    job: Job,
    picked: ColumnElement[bool],
    bounds: Mapping[int, Mapping[int, int]],
) -> list[Lease]:
    """Lease some open shards of a job, with the bounds of their lines by shard and ``idx``."""
    reserved = {shard_no: sum(lines.values()) for shard_no, lines in bounds.items()}
    rows = session.execute(
        update(Shard)
        .where(Shard.job_id == job.id, picked)
        .values(
            state=ShardState.LEASED,
            worker_id=claim.worker_id,
            lease_expires_at=seconds_from_now(claim.lease_seconds),
            epoch=Shard.epoch + 1,
            attempt=Shard.attempt + 1,
            reserved_nano=case(reserved, value=Shard.shard_no, else_=0) if reserved else 0,
        )
        .returning(Shard)
        .execution_options(synchronize_session=False, populate_existing=True)
    ).scalars()
    defaults = Defaults(job.defaults)
    prices = {}
    leases = []
    for row in sorted(rows, key=lambda shard: shard.shard_no):
        if row.price_id not in prices:
            prices[row.price_id] = price_of(session.get_one(Price, row.price_id))
        leases.append(
            Lease(
                key=ShardKey(JobId(job.id), row.shard_no, row.epoch),
                attempt=row.attempt,
                suspect=row.suspect,
                priority=job.priority,
                project_id=ProjectId(job.project_id),
                api_key_id=ApiKeyId(job.api_key_id) if job.api_key_id else None,
                model_id=ModelId(row.model_id),
                price=prices[row.price_id],
                endpoint=job.endpoint,
                input_file_id=FileId(job.input_file_id),
                idx=tuple(row.idx),
                defaults=defaults,
                reserved=bounds.get(row.shard_no, {}),
            )
        )
    return leases


def _waits_above(session: Session, model_id: ModelId, priority: int | None) -> bool:
    if priority is None:
        return False
    return bool(waiting_jobs(session, model_id, above=priority))


def _suspect_waits(session: Session, model_id: ModelId) -> bool:
    query = select(Shard.shard_no).join(Job, Job.id == Shard.job_id)
    query = query.where(
        names(model_id),
        *may_lease(),
        *is_ready(model_id, True),
        Shard.not_before < seconds_from_now(-_SUSPECT_PATIENCE_SECONDS),
    )
    return session.scalar(query.limit(1)) is not None
