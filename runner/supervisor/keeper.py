"""Keeps the services alive in a thread, so that a long recovery never blocks the supervisor."""

import threading
import time
from collections.abc import Callable

from runner.embedded import EmbeddedError, EmbeddedServices, ServiceUrls, StartCancelled
from runner.supervisor.backoff import Backoff

_CHECK_SECONDS = 0.5
_JOIN_SECONDS = 0.1


class ServiceKeeper:
    """Starts the services, prepares the database once, then restarts whichever service dies."""

    def __init__(
        self,
        services: EmbeddedServices,
        prepare: Callable[[ServiceUrls], None],
        tell: Callable[[str], None],
    ) -> None:
        self._services = services
        self._prepare = prepare
        self._tell = tell
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="services", daemon=True)
        self.urls: ServiceUrls | None = None
        """Where the services are; set when they are ready, replaced when they have moved."""
        self.failure: Exception | None = None
        """Why the first start failed; later failures are told and tried again."""

    def start(self) -> None:
        self._thread.start()

    def stop(self, hurried: Callable[[], bool]) -> None:
        """End the watch, then stop the services; ``hurried`` cuts a running preparation short.

        The database undoes a half-made preparation.
        """
        self._cancelled.set()
        while self._thread.is_alive() and not hurried():
            self._thread.join(_JOIN_SECONDS)
        self._services.stop()

    def pids(self) -> dict[str, int | None]:
        return self._services.pids()

    def _run(self) -> None:
        try:
            urls = self._services.start(self._cancelled)
            self._prepare(urls)
            self.urls = urls
        except StartCancelled:
            return
        # Whatever it is, the main thread must learn of it and report it.
        except Exception as failure:
            self.failure = failure
            return
        self._watch()

    def _watch(self) -> None:
        backoff, healthy_since = Backoff(), time.monotonic()
        while not self._cancelled.wait(_CHECK_SECONDS):
            dead = [name for name, pid in self._services.pids().items() if pid is None]
            if not dead:
                continue
            wait = backoff.after_death(time.monotonic() - healthy_since)
            self._tell(f"{' and '.join(dead)} died; starting again in {wait:g} s")
            if self._cancelled.wait(wait):
                return
            try:
                self.urls = self._services.start(self._cancelled)
            except StartCancelled:
                return
            # Also what nobody foresaw, such as a full disk: a watch that ended would heal nothing.
            except Exception as error:
                self._tell(error.message if isinstance(error, EmbeddedError) else str(error))
            healthy_since = time.monotonic()
