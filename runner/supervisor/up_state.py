"""What ``run/up.json`` tells the other commands about a running ``up``, and the lock it holds."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from pydantic import BaseModel, ConfigDict

from runner.embedded.secret import write_private
from runner.supervisor.errors import AlreadyRunning

# The kernel's clock for create times has steps of 10 ms.
_CREATED_TOLERANCE_SECONDS = 0.05


class ProcessState(BaseModel):
    """One process; a pid means little without the time it was created."""

    model_config = ConfigDict(frozen=True)

    pid: int | None
    created: float | None
    state: str
    restarts: int = 0

    def find(self) -> psutil.Process | None:
        """The very process, if it still lives."""
        if self.pid is None or self.created is None:
            return None
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.created) < _CREATED_TOLERANCE_SECONDS
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None


class UpState(BaseModel):
    """The whole tree. No secrets: the addresses of the services are in a file of their own."""

    model_config = ConfigDict(frozen=True)

    pid: int
    created: float
    url: str
    port: int
    ready: bool
    children: dict[str, ProcessState]
    services: dict[str, ProcessState]


def write_up_state(data_dir: Path, state: UpState) -> None:
    write_private(_state_path(data_dir), state.model_dump_json(indent=2) + "\n")


def read_up_state(data_dir: Path) -> UpState | None:
    """The last written state; whether it still holds, ``is_up`` tells."""
    try:
        return UpState.model_validate(json.loads(_state_path(data_dir).read_text()))
    except FileNotFoundError:
        return None


def forget_up_state(data_dir: Path) -> None:
    _state_path(data_dir).unlink(missing_ok=True)


def is_up(data_dir: Path) -> bool:
    """Whether a supervisor holds this data directory; a lock can't be stale as a file can."""
    if not _lock_path(data_dir).exists():
        return False
    handle = _try_lock(data_dir)
    if handle is None:
        return True
    os.close(handle)
    return False


@contextmanager
def hold_data_dir(data_dir: Path) -> Iterator[None]:
    """Keep every other supervisor away from this data directory."""
    handle = _try_lock(data_dir)
    if handle is None:
        raise already_running(data_dir)
    try:
        yield
    finally:
        os.close(handle)


def already_running(data_dir: Path) -> AlreadyRunning:
    """The refusal of a second supervisor, naming the first."""
    state = read_up_state(data_dir)
    where = f" (process {state.pid}, {state.url})" if state else ""
    return AlreadyRunning(
        f"Tokenmill already runs on {data_dir}{where}. Stop it with `tokenmill down`, "
        "or choose another --data-dir."
    )


def _try_lock(data_dir: Path) -> int | None:
    handle = os.open(_lock_path(data_dir), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def _lock_path(data_dir: Path) -> Path:
    return data_dir / "run" / "up.lock"


def _state_path(data_dir: Path) -> Path:
    return data_dir / "run" / "up.json"
