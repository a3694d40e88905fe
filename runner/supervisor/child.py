"""One supervised child process: started, watched, and stopped with everything it forked."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from pathlib import Path

import psutil

from runner.embedded.log_file import rotate
from runner.supervisor.backoff import Backoff
from runner.supervisor.spec import ProcessSpec


class ChildState(StrEnum):
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Death:
    """An end that nobody asked for."""

    pid: int
    status: int
    ran_seconds: float
    wait_seconds: float

    @property
    def cause(self) -> str:
        if self.status >= 0:
            return f"ended with status {self.status}"
        return f"was killed by {signal.Signals(-self.status).name}"


class Child:
    """A process in a session of its own, so that a Ctrl-C in the terminal reaches only us."""

    def __init__(self, spec: ProcessSpec, log_path: Path) -> None:
        self.spec = spec
        self.log_path = log_path
        self.state = ChildState.STOPPED
        self.restarts = 0
        self._popen: subprocess.Popen[bytes] | None = None
        self._process: psutil.Process | None = None
        self._started = 0.0
        self._due = 0.0
        self._backoff = Backoff()

    @property
    def pid(self) -> int | None:
        return self._popen.pid if self._popen else None

    @property
    def created(self) -> float | None:
        """When the process was created by the system's clock: with the pid, its identity."""
        return self._process.create_time() if self._process else None

    def start(self, now: float) -> None:
        rotate(self.log_path)
        leash = (sys.executable, "-E", "-S", str(files("runner.supervisor") / "leash.py"))
        with self.log_path.open("ab") as log:
            self._popen = subprocess.Popen(
                (*leash, str(os.getpid()), *self.spec.command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.spec.env,
                start_new_session=True,
            )
        self._process = psutil.Process(self._popen.pid)
        self._started = now
        self.state = ChildState.RUNNING

    def poll(self, now: float) -> Death | None:
        """Notice a death once, clear what the process left behind and plan the restart."""
        if self.state is not ChildState.RUNNING or not self.gone():
            return None
        pid, status = self.pid, self._bury()
        assert pid is not None
        ran = now - self._started
        wait = self._backoff.after_death(ran)
        self._due = now + wait
        self.state = ChildState.WAITING
        return Death(pid, status, ran, wait)

    def restart_if_due(self, now: float) -> bool:
        if self.state is not ChildState.WAITING or now < self._due:
            return False
        self.start(now)
        self.restarts += 1
        return True

    def put_off(self, now: float) -> float:
        """A restart failed: the seconds to wait before the next."""
        wait = self._backoff.after_death(0.0)
        self._due = now + wait
        return wait

    def ask_to_stop(self) -> None:
        """TERM to the process itself; it knows best how to end its own children."""
        self.state = ChildState.STOPPED
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)

    def gone(self) -> bool:
        """Whether the process has ended. It is not reaped here, so its number stays ours."""
        return self._process is None or self._process.status() == psutil.STATUS_ZOMBIE

    def bury(self) -> None:
        """End the process if it still runs, and everything it forked."""
        self.state = ChildState.STOPPED
        if self._popen is not None:
            self._bury()

    def _bury(self) -> int:
        """Kill the group, then reap its leader: the other way round its number may be reused."""
        assert self._popen is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        self._popen = self._process = None
        return status
