"""Delivers rings over a broker that may be down or, worse, silent: nobody waits long for it."""

import logging
import os
import threading
import time
from collections import deque

from runner.domain.rings import Ring
from runner.doorbell import Send

logger = logging.getLogger(__name__)

_WAIT_SECONDS = 1.0  # what a delivery may cost whoever rings
_CLOSE_SECONDS = 1.0
_TRIES = 2  # the first finds out that a kept connection has gone
_MOST_WAITING = 1_000


class Ringer:
    """Sends rings in order, in a thread of its own.

    Whoever rings waits for the delivery, so that a short-lived process has rung when it ends, but
    not longer than a second, and not at all while an earlier ring is stuck. What is not delivered
    is lost, as a ring may be: the database is asked every few seconds what waits.
    """

    _stuck: bool

    def __init__(self, send: Send) -> None:
        self._send = send
        self._pid = 0
        self._reset()

    def ring(self, ring: Ring) -> None:
        """Deliver a ring, within a second or later or never; raises nothing."""
        if self._pid != os.getpid():  # a fork takes the queue along, but not the thread
            self._reset()
        with self._changed:
            if ring in self._waiting:
                return
            if len(self._waiting) >= _MOST_WAITING:
                self._waiting.popleft()
            self._waiting.append(ring)
            self._start()
            self._changed.notify_all()
            if not self._stuck:
                self._stuck = not self._wait_idle(_WAIT_SECONDS)

    def close(self) -> None:
        """Let the last rings go out, if that is quick."""
        with self._changed:
            if not self._stuck:
                self._wait_idle(_CLOSE_SECONDS)

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: deque[Ring] = deque()
        self._busy = False
        self._stuck = False
        self._thread: threading.Thread | None = None

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ringer", daemon=True)
            self._thread.start()

    def _wait_idle(self, seconds: float) -> bool:
        return self._changed.wait_for(lambda: not self._waiting and not self._busy, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                ring = self._waiting.popleft()
                self._busy = True
            self._deliver(ring)
            with self._changed:
                self._busy = False
                self._stuck = self._stuck and bool(self._waiting)
                self._changed.notify_all()

    def _deliver(self, ring: Ring) -> None:
        begun = time.monotonic()
        for tries_left in reversed(range(_TRIES)):
            try:
                self._send(ring)
            except Exception as error:  # whatever the transport raises, the commit has happened
                if not tries_left or time.monotonic() - begun > _WAIT_SECONDS:
                    logger.warning(
                        "A doorbell was not delivered: %s", error, extra={"action": "ring_lost"}
                    )
                    return
            else:
                return
