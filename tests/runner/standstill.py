"""For how long the machine kept this process from running, while time is measured in it."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NAP_SECONDS = 0.005


class Standstill:
    """The sum of its standstills so far, in microseconds; those that were longer than some."""

    def __init__(self, longer_than: float) -> None:
        self.us = 0
        self._longest_turn_us = int(longer_than * 1e6)
        self._over = threading.Event()

    def watch(self) -> None:
        """Nap until the end, and note what was overslept."""
        before = time.monotonic_ns()
        while not self._over.wait(_NAP_SECONDS):
            now = time.monotonic_ns()
            late = (now - before) // 1000
            self.us += late if late > self._longest_turn_us else 0
            before = now

    def end(self) -> None:
        self._over.set()


@contextmanager
def standstill(longer_than: float) -> Iterator[Standstill]:
    """Watches while something is measured that a standstill of so many seconds would falsify."""
    watched = Standstill(longer_than)
    thread = threading.Thread(target=watched.watch)
    thread.start()
    try:
        yield watched
    finally:
        watched.end()
        thread.join()
