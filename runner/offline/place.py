"""The private folder of one run: whose run it is, that it is alone, and what is left of it."""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runner.domain.errors import InvalidRequest, StateConflict
from runner.embedded import EmbeddedServices

NO_BROKER = "memory://"  # an address that starts no broker; nobody connects to it
_RECORD, _LOCK = "run.json", "lock"
_WAIT_SECONDS = 60.0  # a run that was killed may still be putting its database to rest
_POLL_SECONDS = 0.1
_READ_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class Order:
    """What a run was asked to do. A run goes on only with the order that it was begun with."""

    input_sha256: str
    output: str
    model: str
    options: dict[str, Any]


class Place:
    """The folder of one run. Held by a lock that this process and its engine share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.expanduser().resolve()
        self._lock: int | None = None

    @property
    def lock(self) -> int:
        """The descriptor of the lock: whoever inherits it keeps the place taken."""
        assert self._lock is not None
        return self._lock

    def take(self, tell: Callable[[str], None]) -> None:
        """Make the folder ours alone.

        Raises:
            InvalidRequest: the folder holds something that is not a run's.
            StateConflict: another run is at work in it.
        """
        strangers = self.folder.is_dir() and {path.name for path in self.folder.iterdir()} - {_LOCK}
        if strangers and not self._record_path.is_file():
            raise InvalidRequest(
                f"{self.folder} is not empty and not of a run; name another with --data-dir."
            )
        deadline, told = time.monotonic() + _WAIT_SECONDS, False
        while not self._try_lock():
            if not told:
                tell(f"Another run is at work in {self.folder}; waiting for its end …")
                told = True
            if time.monotonic() > deadline:
                raise StateConflict(f"Another run is at work in {self.folder}; let it end first.")
            time.sleep(_POLL_SECONDS)

    def leave(self) -> None:
        """Let others take the place."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def begin(self, order: Order) -> dict[str, Any] | None:
        """Begin a run, or go on with it; returns its summary if it has ended already.

        Raises:
            StateConflict: the run that was begun here had another order.
        """
        if not self._record_path.is_file():
            self._write(order, None)
            return None
        record = json.loads(self._record_path.read_text())
        begun, asked = record["order"], json.loads(json.dumps(asdict(order)))
        if begun != asked:
            differing = ", ".join(_differences(begun, asked))
            raise StateConflict(
                f"{self.folder} holds a run with another {differing}. Name another output, "
                "or start anew with --fresh.",
                code="another_run",
            )
        summary: dict[str, Any] | None = record["summary"]
        return summary

    def finish(self, order: Order, summary: dict[str, Any]) -> None:
        """Keep only the record of a run whose files are written: its database has served."""
        self._write(order, summary)
        self._clear(keep={_LOCK, _RECORD})

    def services(self) -> EmbeddedServices:
        """The database of this place."""
        return EmbeddedServices(self.folder, broker_url=NO_BROKER)

    def empty(self) -> None:
        """Stop what may still run here and remove all of it."""
        self.services().stop()
        self._record_path.unlink(missing_ok=True)
        self._clear(keep={_LOCK})

    def remove(self) -> None:
        """Leave nothing: the run came to nothing, and no other waits for its state."""
        self.empty()
        (self.folder / _LOCK).unlink()
        with suppress(OSError):  # another run may have come in already
            self.folder.rmdir()

    def _try_lock(self) -> bool:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.folder / _LOCK
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        # The file that was locked may have been removed meanwhile, with its place.
        if _is_locked(handle) and path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
            self._lock = handle
            return True
        os.close(handle)
        return False

    @property
    def _record_path(self) -> Path:
        return self.folder / _RECORD

    def _write(self, order: Order, summary: dict[str, Any] | None) -> None:
        partial = self._record_path.with_suffix(".part")
        partial.write_text(json.dumps({"order": asdict(order), "summary": summary}, indent=2))
        partial.replace(self._record_path)

    def _clear(self, keep: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.name in keep:
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def stop_services(folder: Path) -> None:
    """End the database of a place whose run is gone."""
    EmbeddedServices(folder, broker_url=NO_BROKER).stop()


def sha256_of(path: Path) -> str:
    """The identity of an input file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _is_locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _differences(begun: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    """What differs, in the words of the command line."""
    names = {"input_sha256": "input", "output": "output", "model": "--model"}
    found = [word for name, word in names.items() if begun[name] != asked[name]]
    options = begun["options"].keys() | asked["options"].keys()
    found += sorted(
        f"--{name.replace('_', '-')}"
        for name in options
        if begun["options"].get(name) != asked["options"].get(name)
    )
    return found
