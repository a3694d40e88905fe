"""The thread that leases shards, reads their lines and tokenises them, a little ahead of need."""

import logging
import traceback
from collections.abc import Iterable, Sequence

from runner.db.session import OUTAGES
from runner.domain.leases import ItemInput, Lease
from runner.failpoints import FailPoint, hit
from runner.inference.backend import Backend, LineRefusal, Task
from runner.services.items import read_items
from runner.services.leases import Claim, claim_shards
from runner.worker.context import WorkerContext
from runner.worker.lines import finished_refusal
from runner.worker.patience import Patience
from runner.worker.step_loop import StepLoop

logger = logging.getLogger(__name__)

POLL_SECONDS = 5.0  # how long an idle worker trusts the doorbell
_AHEAD = 2  # lines in hand, as a multiple of the backend's rows
_SUBMIT_LINES = 16  # tokenised lines handed over at once


class Feeder:
    """Keeps about twice the backend's rows in hand, until the worker drains."""

    def __init__(self, context: WorkerContext, backend: Backend, loop: StepLoop) -> None:
        self._context = context
        self._backend = backend
        self._loop = loop
        self._hold_for_suspect = False
        self._urgent_above: int | None = None
        self._patience = Patience("Leasing", "lease_failed")

    def wait_for_suspect(self, waits: bool) -> None:
        """While a suspect shard waits too long, take nothing until all in hand is finished."""
        self._hold_for_suspect = waits

    def hurry(self, above: int | None) -> None:
        """Work of a higher priority than this waits: take it, whatever is in hand of others."""
        self._urgent_above = above
        if above is not None:
            self._context.wake.set()

    def run(self) -> None:
        """The loop; it ends when the worker drains."""
        context = self._context
        while not context.draining.is_set():
            context.wake.clear()
            try:
                leases = self._claim()
                self._feed_all(leases)
            except OUTAGES as error:
                context.draining.wait(self._patience.pause_after(error))
                continue
            self._patience.passed()
            if not leases:
                context.wake.wait(POLL_SECONDS)

    def _claim(self) -> list[Lease]:
        context = self._context
        above = self._urgent_above
        lines = context.book.lines if above is None else context.book.lines_above(above)
        room = _AHEAD * self._backend.rows - lines
        holds = bool(context.book.keys())
        if holds and (self._hold_for_suspect or context.book.has_suspect):
            return []
        shard_lines = context.settings.shard_lines
        if holds and room < min(shard_lines, self._backend.rows):
            return []
        claim = Claim(
            worker_id=context.worker_id,
            model_id=context.model_id,
            shards=max(1, room // shard_lines),
            lease_seconds=context.settings.lease_seconds,
            holds=holds,
            above=above if holds else None,
        )
        with context.sessions.begin() as session:
            leases = claim_shards(session, claim)
            hit(FailPoint.CLAIM_BEFORE_COMMIT)
        if leases:
            hit(FailPoint.CLAIM_AFTER_COMMIT)
        for lease in leases:
            context.book.add(lease, len(lease.idx))
        self._loop.expect_more(bool(leases))
        return leases

    def _feed_all(self, leases: Sequence[Lease]) -> None:
        """Feed leases in turn; those whose lines cannot be read now are given back."""
        unread = [lease.key for lease in leases]
        try:
            for lease in leases:
                self._feed(lease)
                unread.remove(lease.key)
        except OUTAGES:
            self._loop.revoke(self._context.book.drop(unread), release=True)
            raise

    def _feed(self, lease: Lease) -> None:
        with self._context.sessions() as session:
            items = read_items(session, lease)
        self._context.book.add(lease, len(items))
        tasks: list[Task] = []
        for task in self._prepared(lease, items):
            tasks.append(task)
            if len(tasks) == _SUBMIT_LINES:
                self._loop.submit(tasks)
                tasks = []
        self._loop.submit(tasks)

    def _prepared(self, lease: Lease, items: Iterable[ItemInput]) -> Iterable[Task]:
        """Tokenise; a line that cannot be goes straight to the writer."""
        for item in items:
            try:
                yield self._backend.prepare(lease, item)
            except LineRefusal as refusal:
                self._context.ended.put(finished_refusal(lease, item, refusal))
            except Exception as error:  # one line's surprise must not end the others
                _tell(error)
                fault = LineRefusal(500, "internal_error", "The line could not be prepared.")
                self._context.ended.put(finished_refusal(lease, item, fault))


def _tell(error: Exception) -> None:
    """Log what happened to a line by its frames alone: the message may quote the prompt."""
    frames = "".join(traceback.format_tb(error.__traceback__))
    name = type(error).__name__
    logger.error(
        "A line could not be prepared: %s\n%s", name, frames, extra={"action": "line_fault"}
    )
