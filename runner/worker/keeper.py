"""The thread that keeps leases alive and hears what became of them."""

import sys
import time
from collections.abc import Callable

from runner.db.session import OUTAGES
from runner.domain.leases import ShardKey
from runner.inference.backend import Backend
from runner.services.leases import Standing, look_at_leases, renew_leases, revive_leases
from runner.services.worker_time import keep_waste
from runner.services.workers import beat
from runner.worker.context import WorkerContext
from runner.worker.feeder import Feeder
from runner.worker.model_watch import ModelWatch
from runner.worker.patience import Patience
from runner.worker.rates import Rates
from runner.worker.step_loop import StepLoop
from runner.worker.step_report import StepReport

_LOOK_SECONDS = 0.5


class Keeper:
    """Heartbeat and control query, until stopped."""

    def __init__(
        self,
        context: WorkerContext,
        backend: Backend,
        feeder: Feeder,
        loop: StepLoop,
        watch: ModelWatch,
        drain: Callable[[str], None],
    ) -> None:
        self._context = context
        self._backend = backend
        self._feeder = feeder
        self._loop = loop
        self._watch = watch
        self._drain = drain
        self._stopped = False
        self._is_drained = False
        self._patience = Patience("The heartbeat", "beat_failed")
        self._rates = Rates(context.metrics)
        self._report = StepReport(backend.stats)

    def stop(self) -> None:
        """End after the present round."""
        self._stopped = True
        self._context.look.set()

    def run(self) -> None:
        """The loop; it ends on ``stop``."""
        context = self._context
        renew_at = 0.0
        while not self._stopped:
            context.look.clear()
            pause = _LOOK_SECONDS
            try:
                if time.monotonic() >= renew_at:
                    self._renew()
                    renew_at = time.monotonic() + context.settings.heartbeat_seconds
                self._look()
                self._watch.look(self._is_drained)
            except OUTAGES as error:
                pause = self._patience.pause_after(error)
                renew_at = 0.0
                context.cut_off.set()
            else:
                self._patience.passed()
            self._report.look()
            context.power.sample()
            context.look.wait(pause)

    def _renew(self) -> None:
        context = self._context
        with context.sessions.begin() as session:
            stats = {**self._backend.stats(), **self._rates.read()}
            is_known = beat(session, context.worker_id, context.times.read(), stats)
            waste = context.times.changed_waste()
            keep_waste(session, context.worker_id, waste)
            keys, seconds = context.book.keys(), context.settings.lease_seconds
            # Cut off, this worker ran on: where everybody was, nobody has taken its work.
            take_up = revive_leases if context.cut_off.is_set() else renew_leases
            take_up(session, context.worker_id, keys, seconds)
        context.times.note_kept(waste)
        context.cut_off.clear()
        if not is_known:  # what this worker held has gone to others; a new process starts clean
            self._let_go(context.book.keys(), release=False)
            self._drain("declared dead while it was silent")

    def _look(self) -> None:
        """Compare what is in hand with what the database says, in this order of reading: a lease
        taken after the first look is not missed by the second."""
        context = self._context
        in_hand = context.book.keys()
        with context.sessions() as session:
            standing = look_at_leases(session, context.worker_id, context.model_id)
        self._let_go(in_hand - standing.live, release=False)
        self._let_go(in_hand & standing.ended, release=True)
        # A begun lease has work in it that nobody should pay for twice.
        self._loop.wind_up(context.book.wind_up(in_hand & standing.paused))
        self._loop.revoke(context.book.reprioritise(standing.priorities), release=True)
        self._make_way(standing)
        self._feeder.wait_for_suspect(standing.suspect_waits)
        if standing.drained:
            self._loop.revoke(context.book.drop_unstarted(above=sys.maxsize), release=True)
        self._is_drained = standing.drained
        if standing.drain:
            self._drain("asked to drain")

    def _make_way(self, standing: Standing) -> None:
        """Give back what has not begun when more urgent work waits, and have that taken."""
        self._feeder.hurry(standing.urgent_above)
        if standing.urgent_above is not None:
            unstarted = self._context.book.drop_unstarted(standing.urgent_above)
            self._loop.revoke(unstarted, release=True)

    def _let_go(self, keys: set[ShardKey] | frozenset[ShardKey], release: bool) -> None:
        dropped = self._context.book.drop(keys)
        self._loop.revoke(dropped, release)
