"""Spawning, finding and stopping one server process; nothing here knows which server it is.

Pid files are never believed: a pid may have been given to somebody else. A server instead holds a
file lock for as long as any of its processes lives, and is recognised by its working directory.
"""

import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from runner.embedded.account import Account
from runner.embedded.errors import EmbeddedError

_POLL_SECONDS = 0.02
# A server that has just been started may not have gone to its working directory yet.
_MOVING_IN_SECONDS = 2.0

StopSteps = Sequence[tuple[signal.Signals, float]]
"""Signals to send, each with the seconds to wait before the next."""

# A server sees nothing of our environment: PG* variables and locales must not change its behaviour.
SERVER_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C", "TZ": "UTC"}


class ServerProcess:
    """A running server: our own child, or an orphan of an earlier launcher."""

    def __init__(self, process: psutil.Process, child: "subprocess.Popen[bytes] | None") -> None:
        self._process = process
        self._child = child

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        try:
            return self._process.is_running() and self._process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def send(self, number: signal.Signals) -> None:
        if self.alive():
            with suppress(psutil.NoSuchProcess):
                self._process.send_signal(number)


@dataclass(frozen=True)
class ServerSlot:
    """The one place a server may run in: its working directory, and the lock it holds there."""

    home: Path
    lock_path: Path
    log_path: Path
    is_main: Callable[[psutil.Process], bool]

    def occupied(self) -> bool:
        """Whether any process of a server lives here, in whatever container it runs."""
        if not self.lock_path.exists():
            return False
        lock = self._try_lock()
        if lock is None:
            return True
        os.close(lock)
        return False

    def occupant(self) -> ServerProcess | None:
        """The main process of the server that lives here."""
        deadline = time.monotonic() + _MOVING_IN_SECONDS
        while self.occupied():
            for process in self._inhabitants():
                # A killed server's other processes end one by one, perhaps as they are looked at.
                with suppress(psutil.Error):
                    if self.is_main(process):
                        return ServerProcess(process, None)
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        return None

    def spawn(
        self,
        command: Sequence[str],
        account: Account,
        *,
        stdin: bytes = b"",
        descriptors: tuple[int, ...] = (),
    ) -> ServerProcess:
        """Start a server that keeps the lock; the caller waits until it is ready.

        It starts in its home, or where ``descriptors`` lead it there, in the one folder that every
        account can be in.
        """
        lock = self._try_lock()
        if lock is None:
            raise EmbeddedError(f"{self.home} is in use by a running server.")
        try:
            with self.log_path.open("ab") as log, _readable_once(stdin, account) as source:
                child = subprocess.Popen(
                    command,
                    stdin=source,
                    stdout=log,
                    stderr=log,
                    cwd="/" if descriptors else self.home,
                    env=SERVER_ENVIRONMENT,
                    pass_fds=(lock, *descriptors),
                    start_new_session=True,
                    user=account.uid if account.drops else None,
                    group=account.gid if account.drops else None,
                    extra_groups=[] if account.drops else None,
                )
        except OSError as error:
            raise EmbeddedError(f"{command[0]} could not be started: {error}") from error
        finally:
            os.close(lock)
        return ServerProcess(psutil.Process(child.pid), child)

    def vacate(self, server: ServerProcess | None, steps: StopSteps) -> None:
        """Stop whatever lives here and return when its last process is gone."""
        if server is None or not server.alive():
            server = self.occupant()
        for number, seconds in steps:
            if server is not None:
                server.send(number)
            if self._wait_empty(server, seconds):
                return
        for process in self._inhabitants():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        if not self._wait_empty(server, steps[-1][1]):
            raise EmbeddedError(
                f"A server still runs in {self.home} and could not be stopped; it may belong to "
                "another user or container. Stop it there first."
            )

    def tail(self, lines: int = 8) -> str:
        """The last lines of the log, for an error text."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def _wait_empty(self, server: ServerProcess | None, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while (server is not None and server.alive()) or self.occupied():
            if time.monotonic() > deadline:
                return False
            time.sleep(_POLL_SECONDS)
        return True

    def _inhabitants(self) -> list[psutil.Process]:
        home = str(self.home.resolve())
        found = []
        for process in psutil.process_iter():
            try:
                if process.cwd() == home and process.pid != os.getpid():
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def _try_lock(self) -> int | None:
        """A locked descriptor, or None while a server holds the lock."""
        handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return None
        return handle


def run_once(
    command: Sequence[str],
    account: Account,
    *,
    stdin: bytes = b"",
    descriptors: tuple[int, ...] = (),
) -> str:
    """Run a short command as the account; its output, or an error that shows it."""
    try:
        with _readable_once(stdin, account) as source:
            done = subprocess.run(
                command,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=SERVER_ENVIRONMENT,
                pass_fds=descriptors,
                user=account.uid if account.drops else None,
                group=account.gid if account.drops else None,
                extra_groups=[] if account.drops else None,
                check=False,
            )
    except OSError as error:
        raise EmbeddedError(f"{command[0]} could not be started: {error}") from error
    output = done.stdout.decode(errors="replace")
    if done.returncode != 0:
        raise EmbeddedError(f"{command[0]} failed with status {done.returncode}:\n{output}")
    return output


def _readable_once(content: bytes, account: Account) -> IO[bytes]:
    """An unlinked file: secrets reach a server without a name or an argument."""
    source = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    try:
        account.own(source.fileno())
        source.write(content)
        source.seek(0)
    except BaseException:
        source.close()
        raise
    return source
