"""Where a worker's wall time goes."""

import threading
import time
from dataclasses import replace
from uuid import UUID

from runner.services.worker_time import Wasted, WorkerTimes


class TimeSheet:
    """Sums of microseconds since the worker started, added to by any of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started_us = now_us()
        self._times = WorkerTimes()
        self._waste: dict[UUID, Wasted] = {}
        self._kept: dict[UUID, Wasted] = {}

    def add(
        self, *, busy_us: int = 0, idle_us: int = 0, load_us: int = 0, shared_us: int = 0
    ) -> None:
        """Add to the sums."""
        with self._lock:
            times = self._times
            self._times = replace(
                times,
                busy_us=times.busy_us + busy_us,
                idle_us=times.idle_us + idle_us,
                load_us=times.load_us + load_us,
                shared_us=times.shared_us + shared_us,
            )

    def add_waste(self, job_id: UUID, attempts: int, device_us: int) -> None:
        """Note attempts at lines of a job that came to nothing."""
        with self._lock:
            before = self._waste.get(job_id, Wasted())
            self._waste[job_id] = Wasted(before.attempts + attempts, before.device_us + device_us)
            self._times = replace(self._times, wasted_us=self._times.wasted_us + device_us)

    def read(self) -> WorkerTimes:
        """The sums now; each of them only grows."""
        with self._lock:
            return self._times

    def settle(self) -> None:
        """Once the step loop has ended: what was neither load nor work of it was idle, too."""
        with self._lock:
            times = self._times
            rest = now_us() - self._started_us - times.busy_us - times.load_us
            self._times = replace(times, idle_us=max(times.idle_us, rest))

    def changed_waste(self) -> dict[UUID, Wasted]:
        """The waste of the jobs whose waste has not been kept as it is now."""
        with self._lock:
            return {
                job_id: wasted
                for job_id, wasted in self._waste.items()
                if self._kept.get(job_id) != wasted
            }

    def note_kept(self, waste: dict[UUID, Wasted]) -> None:
        """The database has these now."""
        with self._lock:
            self._kept.update(waste)


def now_us() -> int:
    """The monotonic clock, in microseconds."""
    return time.monotonic_ns() // 1000
