"""Looks from time to time whether another model should have this worker."""

import time
from collections.abc import Callable, Sequence

from runner.domain.residency import Residency
from runner.services.models import ModelRecord
from runner.services.residency import plan_switch
from runner.worker.context import WorkerContext

_LOOK_SECONDS = 2.0


class ModelWatch:
    """Made before a model is loaded; of the keeper's thread from then on.

    ``make_room`` is called once, with the model that comes next.
    """

    def __init__(
        self,
        context: WorkerContext,
        names: Sequence[str],
        make_room: Callable[[ModelRecord], None],
    ) -> None:
        self._context = context
        self._names = names
        self._make_room = make_room
        self._since = 0.0
        self._idle_since: float | None = None
        self._look_at = 0.0

    def look(self, is_drained: bool) -> None:
        """Note whether there is work in hand, and now and then compare what waits.

        Raises:
            OUTAGES: the database is away.
        """
        now = time.monotonic()
        self._since = self._since or now
        if self._context.book.keys():
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        is_bound = is_drained or len(self._names) == 1 or self._context.draining.is_set()
        if is_bound or now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        with self._context.sessions.begin() as session:
            worker_id, residency = self._context.worker_id, self._residency(now)
            chosen = plan_switch(session, worker_id, residency, self._names)
        if chosen is not None:
            self._make_room(chosen)

    def _residency(self, now: float) -> Residency:
        return Residency(
            model_id=self._context.model_id,
            seconds=now - self._since,
            load_seconds=self._context.times.read().load_us / 1e6,
            idle_seconds=None if self._idle_since is None else now - self._idle_since,
        )
