"""The counts of shards: leased to CPU workers, and written once for each shard."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select, tuple_, update
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import Job, Shard, ShardCount
from runner.domain.counts import Count
from runner.domain.states import JobState

COUNT_COLUMNS = ("job_id", "shard_no")
_SUMS = (
    "lines",
    "input_tokens",
    "cached_tokens",
    "refused",
    "too_long",
    "bounded_lines",
    "bounded_output",
    "unbounded_lines",
    "unbounded_output",
)


@dataclass(frozen=True, slots=True)
class CountLease:
    """A shard that a CPU worker is to count, and the last line of the one before it, if that has
    the same model."""

    job_id: UUID
    shard_no: int
    epoch: int
    model_id: UUID
    idx: tuple[int, ...]
    before: int | None


def claim_counts(
    session: Session, job_id: UUID, shards: int, lease_seconds: float
) -> list[CountLease]:
    """Lease the next shards of a job that nobody counts, in order; none of a job that has ended.

    A lease that lapsed, because its worker was killed, is up for grabs again.
    """
    picked = (
        select(ShardCount.job_id, ShardCount.shard_no)
        .where(
            ShardCount.job_id == job_id,
            ShardCount.counted_at.is_(None),
            or_(ShardCount.lease_expires_at.is_(None), ShardCount.lease_expires_at < func.now()),
            select(Job.id).where(Job.id == job_id, Job.state == JobState.IN_PROGRESS).exists(),
        )
        .order_by(ShardCount.shard_no)
        .limit(shards)
        .with_for_update(skip_locked=True)
        .cte("picked")
    )
    claimed = session.execute(
        update(ShardCount)
        .where(
            ShardCount.job_id == job_id,
            tuple_(ShardCount.job_id, ShardCount.shard_no)
            == tuple_(picked.c.job_id, picked.c.shard_no),
        )
        .values(epoch=ShardCount.epoch + 1, lease_expires_at=seconds_from_now(lease_seconds))
        .returning(ShardCount.shard_no, ShardCount.epoch)
        .execution_options(synchronize_session=False)
    ).all()
    epochs = {row.shard_no: row.epoch for row in claimed}
    found = _shards(session, job_id, {no + step for no in epochs for step in (-1, 0)})
    return [_lease(found[no], epochs[no], found.get(no - 1)) for no in sorted(epochs)]


def _shards(session: Session, job_id: UUID, numbers: Iterable[int]) -> dict[int, Shard]:
    """Shards by their numbers: each keeps its lines whatever becomes of it."""
    query = select(Shard).where(Shard.job_id == job_id, Shard.shard_no == func.any(list(numbers)))
    return {row.shard_no: row for row in session.scalars(query)}


def _lease(shard: Shard, epoch: int, before: Shard | None) -> CountLease:
    follows = before is not None and before.model_id == shard.model_id
    return CountLease(
        shard.job_id,
        shard.shard_no,
        epoch,
        shard.model_id,
        tuple(shard.idx),
        before.idx[-1] if before is not None and follows else None,
    )


def write_counts(session: Session, counts: Sequence[tuple[CountLease, Count]]) -> int:
    """Write the counts whose lease is still the last one; returns how many these are.

    Any other writer has counted the same, and a count that stands is never written again.
    """
    written = 0
    for lease, count in counts:
        sums = {name: getattr(count, name) for name in _SUMS}
        done = session.scalar(
            update(ShardCount)
            .where(
                ShardCount.job_id == lease.job_id,
                ShardCount.shard_no == lease.shard_no,
                ShardCount.epoch == lease.epoch,
                ShardCount.counted_at.is_(None),
            )
            .values(
                counted_at=func.now(),
                lease_expires_at=None,
                longest=count.longest,
                too_long_idx=list(count.too_long_idx),
                **sums,
            )
            .returning(ShardCount.shard_no)
            .execution_options(synchronize_session=False)
        )
        written += done is not None
    return written


def has_uncounted(session: Session, job_id: UUID) -> bool:
    """Whether a shard of a job has no count yet."""
    query = select(ShardCount.shard_no).where(*_uncounted(job_id)).limit(1)
    return session.scalar(query) is not None


def wants_counting(session: Session, job_id: UUID) -> bool:
    """Whether there is, or will be once a lease lapses, something to claim of a job."""
    return has_uncounted(session, job_id) and (
        session.scalar(select(Job.state).where(Job.id == job_id)) == JobState.IN_PROGRESS
    )


def others_count(session: Session, job_id: UUID) -> bool:
    """Whether anybody counts at a job just now, as far as committed leases tell."""
    leased = ShardCount.lease_expires_at > func.now()
    query = select(ShardCount.shard_no).where(*_uncounted(job_id), leased).limit(1)
    return session.scalar(query) is not None


def total_count(session: Session, job_id: UUID, model_id: UUID | None = None) -> Count:
    """The counts of a job so far, or of one of its models; the too long lines are not named."""
    sums = [func.coalesce(func.sum(getattr(ShardCount, name)), 0) for name in _SUMS]
    longest = func.coalesce(func.max(ShardCount.longest), 0)
    query = select(*sums, longest).where(
        ShardCount.job_id == job_id, ShardCount.counted_at.is_not(None)
    )
    if model_id is not None:
        of_model = select(Shard.shard_no).where(Shard.job_id == job_id, Shard.model_id == model_id)
        query = query.where(ShardCount.shard_no.in_(of_model))
    *values, most = (int(value) for value in session.execute(query).one())
    told: dict[str, Any] = dict(zip(_SUMS, values, strict=True))
    return Count(**told, longest=most)


def too_long_lines(session: Session, job_id: UUID, limit: int) -> list[int]:
    """The numbers (``idx``) of the first too long lines of a job."""
    idx = func.unnest(ShardCount.too_long_idx).label("idx")
    found = select(idx).where(ShardCount.job_id == job_id, ShardCount.too_long > 0).subquery()
    return list(session.scalars(select(found.c.idx).order_by(found.c.idx).limit(limit)))


def _uncounted(job_id: UUID) -> tuple[ColumnElement[bool], ...]:
    return (ShardCount.job_id == job_id, ShardCount.counted_at.is_(None))
