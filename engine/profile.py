"""Where the time of engine steps goes, in seconds by part."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StepProfile:
    """Seconds spent in named parts; a part may not lie inside another."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of the block for `name`, whether it ends well or not."""
        started = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - started
            self._seconds[name] = self._seconds.get(name, 0.0) + spent

    def seconds(self) -> dict[str, float]:
        """A copy of what was counted so far."""
        return dict(self._seconds)
