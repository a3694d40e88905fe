"""How fast a worker is now: what it has committed from one heartbeat to the next."""

import time
from collections.abc import Callable

from runner.worker.metrics import WorkerMetrics


class Rates:
    """Lines and output tokens per second since the last reading; ``clock`` counts seconds."""

    def __init__(self, metrics: WorkerMetrics, clock: Callable[[], float] = time.monotonic) -> None:
        self._metrics = metrics
        self._clock = clock
        self._then = clock()
        self._last = metrics.committed

    def read(self) -> dict[str, float]:
        """The rates, by the names that they have in a worker's figures."""
        now, (lines, tokens) = self._clock(), self._metrics.committed
        seconds = max(now - self._then, 1e-3)
        before_lines, before_tokens = self._last
        self._then, self._last = now, (lines, tokens)
        return {
            "lines_per_s": (lines - before_lines) / seconds,
            "output_tokens_per_s": (tokens - before_tokens) / seconds,
        }
