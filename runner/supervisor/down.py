"""Stopping a tree from another process."""

import time
from contextlib import suppress
from pathlib import Path

import psutil

from runner.embedded import EmbeddedServices
from runner.supervisor.errors import SupervisorError
from runner.supervisor.remnants import sweep_remnants
from runner.supervisor.up_state import ProcessState, hold_data_dir, is_up, read_up_state

_POLL_SECONDS = 0.1


def bring_down(data_dir: Path, services: EmbeddedServices, patience_seconds: float) -> bool:
    """Stop the tree, or what a killed one left behind; whether there was anything to stop."""
    if not (data_dir / "run").is_dir():
        return False
    if is_up(data_dir):
        _stop_supervisor(data_dir, patience_seconds)
        return True
    with hold_data_dir(data_dir):
        left = bool(sweep_remnants(data_dir))
        left = services.occupied() or left
        services.stop()
    return left


def _stop_supervisor(data_dir: Path, patience_seconds: float) -> None:
    state = read_up_state(data_dir)
    if state is None:
        raise SupervisorError(f"Tokenmill is just starting on {data_dir}. Try again in a moment.")
    itself = ProcessState(pid=state.pid, created=state.created, state="running").find()
    if itself is None:
        raise SupervisorError(
            f"The supervisor of {data_dir} runs in another container. Stop it there."
        )
    with suppress(psutil.NoSuchProcess):
        itself.terminate()
    deadline = time.monotonic() + patience_seconds
    while is_up(data_dir):
        if time.monotonic() > deadline:
            raise SupervisorError(
                f"Process {state.pid} is still stopping after {patience_seconds:g} s. "
                "Run `tokenmill down` again to skip the grace times."
            )
        time.sleep(_POLL_SECONDS)
