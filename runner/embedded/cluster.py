"""The files of one Postgres cluster: made by initdb, described by its own version and pid file."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from runner.embedded.account import Account
from runner.embedded.binaries import PostgresBinaries
from runner.embedded.disk import wal_bytes
from runner.embedded.process import run_once

_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "5min",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}
# For tests: a crash of the machine may lose the cluster, a crash of the server does not.
_FAST_SETTINGS = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "128MB"}


class Cluster:
    """One cluster directory and the commands that make and serve it."""

    def __init__(self, home: Path, fast: bool) -> None:
        self.home = home
        self._fast = fast

    def major(self) -> int | None:
        """The major version that made the cluster; None before there is one."""
        version = self.home / "PG_VERSION"
        return int(version.read_text()) if version.exists() else None

    def create(self, binaries: PostgresBinaries, account: Account, password: str) -> None:
        """Run initdb under another name first, so that a half-made cluster is never taken up."""
        draft = self.home.with_name(f"{self.home.name}.new")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        account.own(draft)
        with reachable(draft, account) as (path, descriptors):
            command = [
                binaries["initdb"],
                *("-D", path),
                *("--username", "postgres"),
                # Read from our unlinked file: the password is in no argument and no named file.
                "--pwfile=/dev/stdin",
                "--auth=scram-sha-256",
                "--data-checksums",
                "--encoding=UTF8",
                # The one locale that sorts alike in every build and on every system.
                "--locale=C",
                "--no-instructions",
                *(["--no-sync"] if self._fast else []),
            ]
            run_once(command, account, stdin=f"{password}\n".encode(), descriptors=descriptors)
        draft.rename(self.home)

    def command(self, binaries: PostgresBinaries, path: str, socket_dir: Path) -> list[str]:
        """How to start the server of this cluster, which reaches its files by ``path``."""
        settings = _SETTINGS | (_FAST_SETTINGS if self._fast else {})
        settings["unix_socket_directories"] = str(socket_dir)
        settings["max_wal_size"] = f"{wal_bytes(self.home) // 1024**2}MB"
        command = [binaries["postgres"], "-D", path]
        for key, value in settings.items():
            command += ["-c", f"{key}={value}"]
        return command

    def recorded_socket_dir(self) -> Path | None:
        """Where the running server says that its socket is."""
        lines = self._pid_file()
        return Path(lines[4]) if len(lines) > 4 and lines[4] else None

    def forget_reused_pid(self) -> None:
        """Drop a pid file whose pid lives but is somebody else's: Postgres would refuse to start.

        Only for a caller who has seen the lock free, so that no process of the cluster is left. A
        dead pid is left to Postgres, which then also looks for left-over shared memory.
        """
        lines = self._pid_file()
        if lines and lines[0].isdigit() and psutil.pid_exists(int(lines[0])):
            (self.home / "postmaster.pid").unlink()

    def _pid_file(self) -> list[str]:
        with suppress(FileNotFoundError):
            return (self.home / "postmaster.pid").read_text().splitlines()
        return []


@contextmanager
def reachable(home: Path, account: Account) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The cluster's path as its server can reach it, and the descriptors that it must inherit.

    An account that we dropped to may be unable to pass the folders above the data directory
    (/root, a private temporary folder), and opening those up is not ours to do. The server instead
    inherits the open folder, and the kernel's link to a descriptor leads straight there. (Its
    working directory would serve as well, but Postgres before 16 moves it around.)
    """
    if not account.drops or sys.platform != "linux":
        yield str(home), ()
        return
    handle = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}", (handle,)
    finally:
        os.close(handle)
