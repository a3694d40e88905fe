"""Waiting for a database that is away: growing pauses with jitter, and few words."""

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from runner.db.outages import cause_of
from runner.db.session import OUTAGES, SessionFactory

T = TypeVar("T")

logger = logging.getLogger(__name__)

# Workers that lost the database together must not come back to it together.
_PAUSES = (0.2, 0.5, 1.0, 2.0)
_JITTER = (0.5, 1.5)


class Patience:
    """One caller's dealings with an outage; the log hears of its beginning and of its end."""

    def __init__(self, what: str, action: str) -> None:
        self._what = what
        self._action = action
        self._failures = 0
        self._since = 0.0

    @property
    def is_tried(self) -> bool:
        """Whether the last try failed."""
        return self._failures > 0

    def pause_after(self, error: Exception) -> float:
        """Note one more failure; the seconds to wait now."""
        if not self._failures:
            self._since = time.monotonic()
            logger.warning(
                "%s failed, trying on: %s",
                self._what,
                cause_of(error),
                extra={"action": self._action},
            )
        pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1
        return pause * random.uniform(*_JITTER)

    def passed(self) -> None:
        """Note a success."""
        if self._failures:
            logger.warning(
                "%s works again after %.1f s and %d failures.",
                self._what,
                time.monotonic() - self._since,
                self._failures,
                extra={"action": "outage_over"},
            )
            self._failures = 0


def persist(
    sessions: SessionFactory,
    transaction: Callable[[Session], T],
    patience: Patience,
    give_up: Callable[[], bool] = lambda: False,
) -> T:
    """Run a transaction until the database takes it; it must be one that may be repeated.

    Raises:
        OUTAGES: the database was away, and ``give_up`` said to wait no longer.
    """
    while True:
        try:
            with sessions.begin() as session:
                answer = transaction(session)
        except OUTAGES as error:
            pause = patience.pause_after(error)
            if give_up():
                raise
            time.sleep(pause)
        else:
            patience.passed()
            return answer
