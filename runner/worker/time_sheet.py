"""Where a worker's wall time goes."""

import threading
import time
from dataclasses import replace

from runner.services.workers import WorkerTimes


class TimeSheet:
    """Sums of microseconds, added to by any thread of the worker."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times = WorkerTimes()

    def add(
        self, *, busy_us: int = 0, idle_us: int = 0, load_us: int = 0, wasted_us: int = 0
    ) -> None:
        """Add to the sums."""
        with self._lock:
            times = self._times
            self._times = replace(
                times,
                busy_us=times.busy_us + busy_us,
                idle_us=times.idle_us + idle_us,
                load_us=times.load_us + load_us,
                wasted_us=times.wasted_us + wasted_us,
            )

    def read(self) -> WorkerTimes:
        """The sums now."""
        with self._lock:
            return self._times


def now_us() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000
