"""``tokenmill profile``: a trace of the next steps of a live engine worker."""

import gzip
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from runner.cli.console import AsJson, DataDir, print_json, print_table
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import failing_clearly
from runner.config import load_settings
from runner.domain.errors import InvalidRequest, NotFound
from runner.domain.ids import WORKER_PREFIX, encode
from runner.domain.traces import TraceSummary, summarise
from runner.runtime import Runtime, open_runtime
from runner.services import profiles
from runner.services.profiles import EngineWorkerRecord, ProfileFailed
from runner.supervisor import read_up_state

_POLL_SECONDS = 0.25
_IDLE_POLLS = 4
# A worker that has been told to end a profile still has to write it.
_PATIENCE_SECONDS = 60.0


def register(parent: typer.Typer) -> None:
    """Add ``profile`` to the command line."""
    parent.command()(profile)


def profile(
    worker: Annotated[
        str | None, typer.Argument(help="engine-1, or an id; needless while there is but one.")
    ] = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, max=profiles.MAX_STEPS, help="How many steps.")
    ] = 20,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Where the trace goes; plain without .gz.")
    ] = Path("profile.json.gz"),
    wait: Annotated[
        float, typer.Option("--wait", min=1, max=3600, help="Seconds to wait for the steps.")
    ] = 60.0,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Record an engine worker's next steps as a Chrome trace, and sum them up."""
    with failing_clearly():
        if not output.parent.is_dir():
            raise InvalidRequest(f"There is no folder {output.parent}.", param="output")
        runtime = open_runtime(load_settings(data_dir))
        try:
            trace = _record(runtime, worker, steps, wait)
        except ProfileFailed as error:
            typer.echo(f"error: {error.message} [{error.code}]", err=True)
            raise typer.Exit(ExitCode.FAILURES) from None
        finally:
            runtime.close()
        summary = summarise(trace)
        write(output, trace)
    if as_json:
        print_json({"output": str(output), **asdict(summary)})
    else:
        show(summary, steps, output)


def _record(runtime: Runtime, name: str | None, steps: int, seconds: float) -> bytes:
    """Ask, wait and fetch; whatever goes wrong, no order is left behind."""
    with runtime.transaction() as session:
        found = profiles.live_engine_workers(session)
        chosen = choose(found, name, runtime.settings.data_dir)
        order = profiles.ask(session, chosen.id, steps, seconds)
    try:
        wait_until_done(lambda: _look(runtime, order), seconds)
        with runtime.transaction() as session:
            return profiles.fetch(session, order)[0]
    except BaseException:
        with runtime.transaction() as session:
            profiles.withdraw(session, order)
        raise


def _look(runtime: Runtime, order: UUID) -> str:
    with runtime.transaction() as session:
        return profiles.state_of(session, order)


def wait_until_done(look: Callable[[], str], seconds: float) -> None:
    """Look at an order until it is done, and say once if its worker has nothing to do."""
    deadline = time.monotonic() + seconds + _PATIENCE_SECONDS
    polls, is_told = 0, False
    while (state := look()) != "done":
        if time.monotonic() > deadline:
            raise ProfileFailed(
                "The worker does not answer; look at its log and at: tokenmill status."
            )
        polls += 1
        if polls >= _IDLE_POLLS and state == "taken" and not is_told:
            is_told = True
            typer.echo(f"The worker is idle; waiting up to {seconds:.0f} s for lines.", err=True)
        time.sleep(_POLL_SECONDS)


def choose(found: list[EngineWorkerRecord], name: str | None, data_dir: Path) -> EngineWorkerRecord:
    """The worker of a name or an id; without one, the only worker there is.

    Raises:
        NotFound: nobody is called so, or there is nobody.
        InvalidRequest: there are several and no name.
    """
    if not found:
        raise NotFound("No engine worker lives; tokenmill status shows what runs.")
    told = ", ".join(f"{encode(WORKER_PREFIX, one.id)} ({one.model})" for one in found)
    if name is None:
        if len(found) > 1:
            raise InvalidRequest(f"Say which worker; these live: {told}.", param="worker")
        return found[0]
    pid = _pid_of(data_dir, name)
    for one in found:
        is_child = (one.host, one.pid) == (socket.gethostname(), pid)
        if is_child or encode(WORKER_PREFIX, one.id) == name:
            return one
    raise NotFound(f"No engine worker {name} lives; these do: {told}.", param="worker")


def _pid_of(data_dir: Path, name: str) -> int | None:
    """The process of a child of this host's supervisor, such as ``engine-1``."""
    state = read_up_state(data_dir)
    child = state.children.get(name) if state else None
    return child.pid if child else None


def write(path: Path, trace: bytes) -> None:
    """Write beside the destination and rename: a file with the name is complete."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(trace if path.suffix == ".gz" else gzip.decompress(trace))
        partial.rename(path)
    except OSError as error:
        raise InvalidRequest(f"{path} cannot be written: {error}.", param="output") from None
    finally:
        partial.unlink(missing_ok=True)


def show(summary: TraceSummary, asked: int, output: Path) -> None:
    """Print a summary for a person."""
    typer.echo(
        f"{summary.steps} of {asked} steps: {summary.step_ms_mean:.1f} ms on average, "
        f"half within {summary.step_ms_p50:.1f} ms, 95 of 100 within {summary.step_ms_p95:.1f} ms; "
        f"{summary.tokens_per_step:.1f} tokens in {summary.rows_per_step:.1f} rows per step"
    )
    device = summary.device_shares
    rows = [
        (name, f"{share:.1%}", f"{device.get(name, 0.0):.1%}" if device else None)
        for name, share in summary.shares.items()
    ]
    print_table(("part of the step", "host", "device"), rows)
    told = [(one.name[:80], one.calls, round(one.ms, 2)) for one in summary.operations]
    print_table(("operation", "calls", "own ms"), told)
    if summary.kernels:
        told = [(one.name[:80], one.calls, round(one.ms, 2)) for one in summary.kernels]
        print_table(("kernel", "calls", "ms"), told)
    typer.echo(f"{output} opens in ui.perfetto.dev or chrome://tracing.")
