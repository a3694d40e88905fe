"""The thread that commits what ended, in packs, and gives back what was revoked."""

import logging
import queue
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeGuard, TypeVar

from sqlalchemy.orm import Session

from runner.domain.ids import JobId
from runner.domain.leases import FinishedItem, ShardKey
from runner.failpoints import FailPoint, hit
from runner.inference.backend import Outcome
from runner.services.closing import close_if_drained
from runner.services.leases import give_back, revive_leases
from runner.services.results import CommitOutcome, commit_results
from runner.worker.context import WorkerContext
from runner.worker.lines import Closed, Ended, Revoked, finished_outcome
from runner.worker.patience import Patience, persist
from runner.worker.step_loop import StepLoop

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PACK_SECONDS = 0.25  # a result waits at most this long for others
_PACK_MIN, _PACK_MAX = 64, 512


class Writer:
    """Drains the queue of ended tasks into the database, in order."""

    def __init__(self, context: WorkerContext, loop: StepLoop) -> None:
        self._context = context
        self._loop = loop
        self._patience = Patience("A commit", "commit_failed")

    def run(self) -> None:
        """The loop; it ends when ``Closed`` has come through."""
        while True:
            batch = self._next_batch()
            self._commit([self._item(entry) for entry in batch if _is_result(entry)])
            match batch[-1]:
                case Revoked(keys, release):
                    if release:
                        self._release(keys)
                case Closed():
                    return

    def _next_batch(self) -> list[Ended]:
        """What ended, up to a pack. ``Revoked`` and ``Closed`` end one, so that they come last."""
        batch = [self._context.ended.get()]
        deadline = time.monotonic() + _PACK_SECONDS
        while _is_result(batch[-1]) and len(batch) < _PACK_MAX:
            patience = deadline - time.monotonic() if len(batch) < _PACK_MIN else 0
            try:
                batch.append(self._context.ended.get(timeout=max(0.0, patience)))
            except queue.Empty:
                break
        return batch

    def _item(self, entry: Outcome | FinishedItem) -> FinishedItem:
        """The result of what ended, with the energy that it took where that is measured."""
        item = finished_outcome(entry) if isinstance(entry, Outcome) else entry
        measured = self._context.power.share_of(item.metrics.device_us, item.metrics.total_us)
        if measured is None:
            return item
        return replace(item, metrics=replace(item.metrics, energy_uj=measured))

    def _commit(self, items: Sequence[FinishedItem]) -> None:
        if not items:
            return
        context = self._context

        def transaction(session: Session) -> CommitOutcome:
            if self._patience.is_tried or context.cut_off.is_set():
                keys = context.book.keys() | {item.lease.key for item in items}
                revive_leases(session, context.worker_id, keys, context.settings.lease_seconds)
            return commit_results(session, context.worker_id, items)

        outcome = self._persist(transaction)
        hit(FailPoint.RESULTS_AFTER_COMMIT)
        stale = {item.lease.key for item in outcome.stale}
        context.metrics.observe(item for item in items if item.lease.key not in stale)
        context.book.finish(item.lease.key for item in items)
        context.book.drop(outcome.done | stale)
        if stale:
            self._loop.revoke(stale, release=False)
            logger.warning(
                "%d results came after their lease.", len(outcome.stale), extra={"action": "stale"}
            )
        self._account(items, stale)
        self._close({key.job_id for key in outcome.done})
        context.wake.set()

    def _account(self, items: Sequence[FinishedItem], stale: set[ShardKey]) -> None:
        """Tell the time sheet whose device time was for an answer, and whose for nothing."""
        times = self._context.times
        for item in items:
            if item.failed or item.lease.key in stale:
                times.add_waste(item.lease.key.job_id, 1, item.metrics.device_us)
            else:
                times.add(shared_us=item.metrics.device_us)

    def _release(self, keys: frozenset[ShardKey]) -> None:
        self._persist(lambda session: give_back(session, self._context.worker_id, keys))
        self._close({key.job_id for key in keys})
        self._context.wake.set()

    def _close(self, job_ids: set[JobId]) -> None:
        for job_id in job_ids:
            self._persist(partial(_close, job_id=job_id))

    def _persist(self, transaction: Callable[[Session], T]) -> T:
        """Run a transaction until the database takes it; every one of ours may be repeated."""
        return persist(self._context.sessions, transaction, self._patience)


def _close(session: Session, job_id: JobId) -> None:
    close_if_drained(session, job_id)


def _is_result(entry: Ended) -> TypeGuard[Outcome | FinishedItem]:
    return isinstance(entry, Outcome | FinishedItem)
