"""Postgres' own programs for dumps, run on the database that an address leads to."""

import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import IO

from sqlalchemy import URL, make_url

from runner.backup.errors import BackupError
from runner.embedded.binaries import find_client
from runner.embedded.process import SERVER_ENVIRONMENT

_PIECE_BYTES = 1024**2
_LOCK_WAIT = "60s"


def read_dump(database_url: str, snapshot: str) -> Iterator[bytes]:
    """The whole database as it is in a snapshot, in the custom format of pg_dump."""
    options = (
        "--format=custom",
        # Every build reads it, and it keeps up with the disk.
        "--compress=gzip:1",
        "--no-owner",
        "--no-privileges",
        f"--lock-wait-timeout={_LOCK_WAIT}",
        f"--snapshot={snapshot}",
    )
    with _running("pg_dump", database_url, options, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while piece := process.stdout.read(_PIECE_BYTES):
            yield piece


def write_dump(database_url: str, pieces: Iterable[bytes]) -> None:
    """Make an empty database what a dump says, all or nothing."""
    options = ("--exit-on-error", "--single-transaction", "--no-owner", "--no-privileges")
    with _running("pg_restore", database_url, options, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        # A program that has failed reads no further; what it says then is the better error.
        with suppress(BrokenPipeError):
            for piece in pieces:
                process.stdin.write(piece)
            process.stdin.close()


@contextmanager
def _running(
    name: str,
    database_url: str,
    options: tuple[str, ...],
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.DEVNULL,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program at work; at the end it must have done it.

    Raises:
        BackupError: it failed; the message has its last words.
    """
    address, secrets = _address(make_url(database_url))
    command = [str(find_client(name)), *options, f"--dbname={address}"]
    with tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            command,
            env={**SERVER_ENVIRONMENT, **secrets},
            stdin=stdin,
            stdout=stdout,
            stderr=words,
        )
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            for stream in (process.stdin, process.stdout):
                _close(stream)
            process.wait()
        if process.returncode:
            raise BackupError(f"{name} failed: {_last_words(words)}")


def _close(stream: IO[bytes] | None) -> None:
    if stream is not None:
        with suppress(BrokenPipeError):
            stream.close()


def _address(url: URL) -> tuple[str, dict[str, str]]:
    """The address for a program's arguments, which all users of the host see; the password goes
    through the environment."""
    bare = URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    password = None if url.password is None else str(url.password)
    return bare.render_as_string(), {} if password is None else {"PGPASSWORD": password}


def _last_words(words: IO[bytes]) -> str:
    words.seek(0)
    lines = words.read().decode(errors="replace").strip().splitlines()
    return " ".join(lines[-5:]) or "it said nothing"
