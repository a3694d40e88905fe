"""One log line a minute about what the engine does, while it does something."""

import logging
import time
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

PERIOD_SECONDS = 60.0

Stats = Mapping[str, float]


class StepReport:
    """Compares the engine's counters with those of a minute ago.

    ``clock`` counts seconds. A backend that does not measure its steps is not reported.
    """

    def __init__(
        self, stats: Callable[[], Stats], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stats = stats
        self._clock = clock
        self._then = clock()
        self._last = dict(stats())

    def look(self) -> None:
        """Log a line if it is time and there were steps; call this often (any one thread)."""
        seconds = self._clock() - self._then
        if seconds < PERIOD_SECONDS:
            return
        stats = dict(self._stats())
        if stats.get("steps", 0) > self._last.get("steps", 0) and "busy_us" in stats:
            figures = _figures(stats, self._last, seconds)
            extra = {"action": "engine_figures", "figures": figures}
            logger.info("The engine in the last %.0f s.", seconds, extra=extra)
        self._then += seconds
        self._last = stats


def _figures(now: Stats, last: Stats, seconds: float) -> dict[str, float]:
    """What changed, per second or step, and what holds now; shares are from 0 to 1."""
    grown = {name: value - last.get(name, 0) for name, value in now.items()}
    steps, queried = grown["steps"], grown["prefix_query_tokens"]
    return {
        "rows": now["running"],
        "waiting": now["waiting"],
        "output_tokens_per_s": round(grown["output_tokens"] / seconds, 1),
        "prompt_tokens_per_s": round(grown["prompt_tokens"] / seconds, 1),
        "kv_used": round(now["kv_utilization"], 3),
        "fragmentation": round(now["fragmentation"], 3),
        "prefix_hits": round(grown["prefix_hit_tokens"] / queried, 3) if queried else 0.0,
        "preemptions": grown["preemptions"],
        "recomputed_tokens": grown["recomputed_tokens"],
        "copies": grown["copies"],
        "guessed_tokens": grown["guessed_tokens"],
        "held_tokens": grown["held_tokens"],
        "step_ms": round(grown["busy_us"] / steps / 1000, 2),
        "host_ms": round(grown["host_us"] / steps / 1000, 2),
    }
