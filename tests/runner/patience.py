"""Waiting for what threads and processes do, on a machine that may be slow and stand still."""

import time
from collections.abc import Callable

PATIENCE = 90.0


def wait_until(reached: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Look until it has come to pass."""
    deadline = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)
