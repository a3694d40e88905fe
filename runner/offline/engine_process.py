"""A run's hold of its engine's process."""

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from runner.domain.rings import Ring
from runner.offline.pipe import PipeBell, hear

_TAIL_LINES = 3


class EngineProcess:
    """Starts the engine, rings it, hears its rings, and ends it."""

    def __init__(
        self,
        model_name: str,
        environment: Mapping[str, str],
        lock: int,
        log_path: Path,
        on_ring: Callable[[Ring], None],
    ) -> None:
        self._command = (sys.executable, "-m", "runner.offline.engine", model_name)
        self._environment = environment
        self._lock = lock
        self._log_path = log_path
        self._on_ring = on_ring
        self._popen: subprocess.Popen[bytes] | None = None
        self._bell: PipeBell | None = None

    @property
    def pid(self) -> int:
        """Of the latest start."""
        assert self._popen is not None
        return self._popen.pid

    def start(self) -> None:
        """Start it in a session of its own, so that a Ctrl-C in the terminal reaches only us."""
        with self._log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment,
                pass_fds=(self._lock,),
                start_new_session=True,
            )
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._bell = PipeBell(self._popen.stdin)
        hearing = (self._popen.stdout, self._on_ring)
        threading.Thread(target=hear, args=hearing, name="engine-rings", daemon=True).start()

    def send(self, ring: Ring) -> None:
        """Have it look at the database."""
        if self._bell is not None:
            self._bell.send(ring)

    def alive(self) -> bool:
        """Whether the latest start still runs."""
        return self._popen is not None and self._popen.poll() is None

    def stop(self, patience_seconds: float) -> None:
        """Drain and end it; at once where it takes too long, or when interrupted again."""
        if self._popen is None:
            return
        self._popen.terminate()
        try:
            self._popen.wait(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            logging.getLogger(__name__).warning("The engine did not drain in time.")
        finally:
            self._popen.kill()
            self._popen.wait()

    def last_words(self) -> str:
        """The end of its log, and where the rest is."""
        lines = [line for line in self._log_path.read_text(errors="replace").splitlines() if line]
        return "\n".join([*lines[-_TAIL_LINES:], f"The whole log: {self._log_path}"])
