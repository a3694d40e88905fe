"""Rings through a pipe: between a run and its engine no broker is needed. A line is a ring."""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import IO
from uuid import UUID

from runner.domain.rings import Bell, Ring


class PipeBell:
    """Sends rings into a pipe; any thread may. Nobody at the other end costs nothing."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, ring: Ring) -> None:
        """Send one ring."""
        text = ring.bell if ring.job_id is None else f"{ring.bell} {ring.job_id}"
        with self._lock, suppress(OSError, ValueError):
            self._stream.write(text.encode() + b"\n")
            self._stream.flush()


def hear(stream: IO[bytes], on_ring: Callable[[Ring], None]) -> None:
    """Hand on every ring of a pipe; returns when the other end is gone."""
    for line in stream:
        ring = _ring(line)
        if ring is not None:
            on_ring(ring)


def _ring(line: bytes) -> Ring | None:
    """What a line says; None for one that a library printed, or that a killed sender broke off."""
    try:
        bell, _, job_id = line.decode().strip().partition(" ")
        return Ring(Bell(bell), UUID(job_id) if job_id else None)
    except ValueError:
        return None
