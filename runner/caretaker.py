"""A CPU worker's own look at the database, for as long as the broker brings it no ticks.

Messages make reactions fast; nothing may depend on them. Engine workers poll by themselves, and
this does the same for what CPU workers do: files are read, jobs are closed, lapsed leases are
freed, house is kept, whether there is a broker or not.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from runner.config import Settings
from runner.db.outages import cause_of
from runner.db.session import OUTAGES, SessionFactory
from runner.domain.rings import Ring
from runner.doorbell import connect_doorbell
from runner.services.reconcile import Contact, keep_house, reconcile

logger = logging.getLogger(__name__)

# A tick goes to any of the processes of a pool: of two, one sees every third or fourth at least.
_TICKS_MISSED = 4
_HOUSE_SECONDS = 3_600.0


class Caretaker:
    """Works when a message comes, and by itself when none has come for some ticks."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionFactory,
        alone: SessionFactory,
        answer: Callable[[Ring], None],
    ) -> None:
        """``alone`` makes sessions that ring nobody: what they ring for is answered here."""
        self._settings = settings
        self._sessions = sessions
        self._alone = alone
        self._answer = answer
        self._patience = _TICKS_MISSED * settings.tick_seconds
        self._contact = Contact(settings)
        self._rings: list[Ring] = []
        self._heard = time.monotonic()
        self._housed = -math.inf
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        connect_doorbell(alone, self._rings.append)

    def start(self) -> None:
        """Watch from now on, in a thread of this process."""
        self._thread = threading.Thread(target=self._watch, name="caretaker", daemon=True)
        self._thread.start()

    def stop(self, patience_seconds: float) -> None:
        """Watch no longer; waits so long for a look that is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(patience_seconds)

    def tick(self) -> None:
        """A tick came."""
        with self._hearing():
            reconcile(self._sessions, self._settings, self._contact)

    def answer(self, ring: Ring) -> None:
        """A ring came."""
        with self._hearing():
            self._answer(ring)

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """While a message is worked at, and just after, there is a broker."""
        self._heard = math.inf
        try:
            yield
        finally:
            self._heard = time.monotonic()

    def _watch(self) -> None:
        while not self._stopping.wait(self._settings.tick_seconds):
            if time.monotonic() - self._heard > self._patience:
                try:
                    self._look()
                except OUTAGES as error:
                    logger.warning(
                        "A look failed: %s", cause_of(error), extra={"action": "look_failed"}
                    )
                except Exception:  # a job that cannot be closed must not end the watch
                    logger.exception("A look failed.", extra={"action": "look_failed"})

    def _look(self) -> None:
        """Do a tick's work, at once what it would have rung for, and hourly the slow chores."""
        reconcile(self._alone, self._settings, self._contact)
        while self._rings:
            self._answer(self._rings.pop(0))
        if time.monotonic() - self._housed > _HOUSE_SECONDS:
            self._housed = time.monotonic()  # before: what fails waits for its next turn, too
            keep_house(self._alone)
