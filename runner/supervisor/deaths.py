"""Tells the database at once which worker died, so that no line waits for its lease to end."""

import queue
import threading
import time
from collections.abc import Callable

_RETRY_SECONDS = 1.0
# After that the leases have lapsed by themselves.
_PATIENCE_SECONDS = 60.0


class DeathReports:
    """Reports in a thread of its own: the database may be the next thing that is down."""

    def __init__(self, report: Callable[[int], bool]) -> None:
        """``report`` returns whether the database has taken the report of a pid."""
        self._report = report
        self._pids: queue.Queue[int | None] = queue.Queue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="deaths", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, pid: int) -> None:
        self._pids.put(pid)

    def close(self, patience_seconds: float) -> None:
        """Make each remaining report once and end."""
        self._closing.set()
        self._pids.put(None)
        self._thread.join(patience_seconds)

    def _run(self) -> None:
        while (pid := self._pids.get()) is not None:
            give_up = time.monotonic() + _PATIENCE_SECONDS
            while not self._report(pid) and time.monotonic() < give_up:
                if self._closing.wait(_RETRY_SECONDS):
                    break
