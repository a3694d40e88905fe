"""Children of an earlier supervisor that was killed: ended before a new tree is started."""

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil

from runner.supervisor.up_state import ProcessState, forget_up_state, read_up_state

# They were asked to stop when their supervisor died; this is what they get on top.
GRACE_SECONDS = 10.0
_POLL_SECONDS = 0.05


def sweep_remnants(data_dir: Path, grace_seconds: float = GRACE_SECONDS) -> list[int]:
    """End what is left of an earlier tree; the pids of its children, whose work is free now.

    Only for the holder of the data directory's lock: a state file that is still there then belongs
    to a supervisor that had no time to clean up.
    """
    state = read_up_state(data_dir)
    if state is None:
        return []
    children = state.children.values()
    for child in children:
        process = child.find()
        if process is not None:
            with suppress(psutil.NoSuchProcess):
                process.terminate()
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and any(_members(child) for child in children):
        time.sleep(_POLL_SECONDS)
    for child in children:
        for process in _members(child):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
    forget_up_state(data_dir)
    return [child.pid for child in children if child.pid is not None]


def _members(child: ProcessState) -> list[psutil.Process]:
    """The living processes of a child's group, unless the number now belongs to somebody else."""
    if child.pid is None or (psutil.pid_exists(child.pid) and child.find() is None):
        return []
    members = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and os.getpgid(process.pid) == child.pid:
                members.append(process)
    return members
