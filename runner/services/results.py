"""Committing finished lines: result, ledger row and counters in one transaction, fenced."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import case, func, select, update
from sqlalchemy.orm import Session

from runner.db.copy import copy_rows
from runner.db.models import Result, Shard, Worker
from runner.domain.ids import WorkerId
from runner.domain.leases import FinishedItem, ShardKey
from runner.domain.states import ShardState
from runner.failpoints import FailPoint, hit
from runner.services.accounting import (
    RESULT_COLUMNS,
    USAGE_COLUMNS,
    Charge,
    charge_of,
    usage_row,
)
from runner.services.leases import lock_live
from runner.services.spending import note_spending
from runner.services.turns import note_served

_COUNTERS = (
    "succeeded",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "billed_nano",
    "run_cost_nano",
)


@dataclass(frozen=True, slots=True)
class CommitOutcome:
    """What became of a pack: accepted items, the stale ones that were refused, shards now done."""

    accepted: int
    stale: tuple[FinishedItem, ...]
    done: frozenset[ShardKey]


def commit_results(
    session: Session, worker_id: WorkerId, pack: Sequence[FinishedItem]
) -> CommitOutcome:
    """Accept the items whose lease is live now; the rest are stale and leave no trace.

    Repeating a commit whose answer was lost is harmless: items that have a result already are
    neither written nor counted again.
    """
    keys = {item.lease.key for item in pack}
    missing = lock_live(session, worker_id, keys)
    known = _known_results(session, pack)
    fresh = [
        item
        for item in pack
        if item.lease.key in missing and (item.lease.key.job_id, item.idx) not in known
    ]
    results = (
        (item.lease.key.job_id, item.idx, item.failed, item.lease.key.epoch, item.line)
        for item in fresh
    )
    copy_rows(session, "results", RESULT_COLUMNS, results)
    charges = [(item, charge_of(item)) for item in fresh if not item.failed]
    usage = (usage_row(item, charge, worker_id) for item, charge in charges)
    copy_rows(session, "usage", USAGE_COLUMNS, usage)
    stale = tuple(
        item
        for item in pack
        if item.lease.key not in missing
        and known.get((item.lease.key.job_id, item.idx)) != item.lease.key.epoch
    )
    if stale:
        _count_stale(session, worker_id, len(stale))
    note_spending(session, worker_id, charges)
    deltas = _deltas(fresh, charges)
    _add_to_shards(session, deltas)
    note_served(session, worker_id, fresh)
    hit(FailPoint.RESULTS_BEFORE_COMMIT)
    return CommitOutcome(
        accepted=len(fresh),
        stale=stale,
        done=frozenset(
            key
            for key, delta in deltas.items()
            if delta["succeeded"] + delta["failed"] == missing[key]
        )
        | (keys - missing.keys() - {item.lease.key for item in stale}),
    )


def _count_stale(session: Session, worker_id: WorkerId, count: int) -> None:
    """Note on the worker's row, dead or alive, that it brought results too late."""
    session.execute(
        update(Worker)
        .where(Worker.id == worker_id)
        .values(stale_results=Worker.stale_results + count)
    )


def _known_results(session: Session, pack: Sequence[FinishedItem]) -> dict[tuple[UUID, int], int]:
    """The items of a pack that were committed before, and under which epoch.

    The locks on their shards keep this true.
    """
    by_job: dict[UUID, list[int]] = {}
    for item in pack:
        by_job.setdefault(item.lease.key.job_id, []).append(item.idx)
    known: dict[tuple[UUID, int], int] = {}
    for job_id, idx in by_job.items():
        query = select(Result.idx, Result.epoch)
        query = query.where(Result.job_id == job_id, Result.idx == func.any(idx))
        known.update(((job_id, row.idx), row.epoch) for row in session.execute(query))
    return known


def _deltas(
    fresh: Sequence[FinishedItem], charges: Sequence[tuple[FinishedItem, Charge]]
) -> dict[ShardKey, Counter[str]]:
    """What a pack adds to the counters of each shard."""
    deltas: dict[ShardKey, Counter[str]] = {item.lease.key: Counter() for item in fresh}
    for item in fresh:
        deltas[item.lease.key]["failed" if item.failed else "succeeded"] += 1
        deltas[item.lease.key]["freed_nano"] += item.lease.reserved.get(item.idx, 0)
    for item, charge in charges:
        deltas[item.lease.key].update(
            prompt_tokens=item.metrics.prompt_tokens,
            cached_tokens=item.metrics.cached_tokens,
            output_tokens=item.metrics.output_tokens,
            billed_nano=charge.billed_nano,
            run_cost_nano=charge.run_cost_nano,
        )
    return deltas


def _add_to_shards(session: Session, deltas: dict[ShardKey, Counter[str]]) -> None:
    """Add to the counters of locked shards; a shard that lacks nothing more is done."""
    for key, delta in deltas.items():
        finished = Shard.succeeded + Shard.failed + delta["succeeded"] + delta["failed"]
        is_done = finished == func.cardinality(Shard.idx)
        sums = {name: getattr(Shard, name) + delta[name] for name in _COUNTERS}
        session.execute(
            update(Shard)
            .where(Shard.job_id == key.job_id, Shard.shard_no == key.shard_no)
            .values(
                state=case((is_done, ShardState.DONE), else_=Shard.state),
                worker_id=case((is_done, None), else_=Shard.worker_id),
                lease_expires_at=case((is_done, None), else_=Shard.lease_expires_at),
                reserved_nano=case((is_done, 0), else_=Shard.reserved_nano - delta["freed_nano"]),
                **sums,
            )
            .execution_options(synchronize_session=False)
        )
