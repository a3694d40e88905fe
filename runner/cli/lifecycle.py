"""The verbs of a whole installation: up, down, status, logs, doctor."""

import dataclasses
import json
import time
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir
from runner.cli.exit_codes import ExitCode
from runner.config import Settings, load_settings
from runner.domain.errors import RunnerError
from runner.embedded import running
from runner.supervisor import AlreadyRunning, Supervisor, UpOptions, UpState
from runner.supervisor.doctor import Check, Verdict, addresses, examine
from runner.supervisor.down import bring_down
from runner.supervisor.launch import make_plan, services_of
from runner.supervisor.up_state import ProcessState, is_up, read_up_state

_EXIT_CODES = {
    AlreadyRunning.code: ExitCode.USAGE,
    "port_in_use": ExitCode.USAGE,
    "database_unreachable": ExitCode.UNREACHABLE,
}
_FOLLOW_SECONDS = 0.2
_DOWN_SECONDS = 120.0

Host = Annotated[str, typer.Option(help="The address that the page listens on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The page's port; 0 takes a free one.")]


def register(app: typer.Typer) -> None:
    """Add these verbs to the command line."""
    for verb in (up, down, status, logs, doctor):
        app.command()(verb)


def up(
    data_dir: DataDir = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    workers: Annotated[int, typer.Option(min=1, help="How many engine workers to run.")] = 1,
    no_engine: Annotated[bool, typer.Option("--no-engine", help="Run no engine worker.")] = False,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model to serve; may be given several times. Without it: all."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Start everything and stay until Ctrl-C; a second Ctrl-C skips the grace times."""
    options = UpOptions(host, port, 0 if no_engine else workers, tuple(model or ()))
    started = time.monotonic()

    def on_ready(state: UpState) -> None:
        if as_json:
            typer.echo(json.dumps(_summary(state)))
        else:
            seconds = time.monotonic() - started
            typer.echo(
                f"Tokenmill is ready at {state.url} (after {seconds:.1f} s; Ctrl-C stops it)"
            )

    try:
        settings = load_settings(data_dir)
        Supervisor(make_plan(settings, options, _tell, on_ready)).run()
    except RunnerError as error:
        _fail(error)


def down(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Stop what `up` started, and what a killed `up` left behind."""
    settings = load_settings(data_dir)
    try:
        stopped = bring_down(settings.data_dir, services_of(settings), _DOWN_SECONDS)
    except RunnerError as error:
        _fail(error)
    words = "Tokenmill is stopped." if stopped else f"Nothing runs on {settings.data_dir}."
    typer.echo(json.dumps({"stopped": stopped}) if as_json else words)
    if not stopped:
        raise typer.Exit(ExitCode.UNREACHABLE)


def status(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Show every process: its pid, how long it runs, how often it was restarted."""
    settings = load_settings(data_dir)
    state = read_up_state(settings.data_dir) if is_up(settings.data_dir) else None
    if state is None:
        _show_stopped(settings, as_json)
        raise typer.Exit(ExitCode.UNREACHABLE)
    summary = _summary(state)
    if as_json:
        typer.echo(json.dumps(summary))
    else:
        word = "ready" if state.ready else "starting"
        typer.echo(f"Tokenmill is {word} at {state.url} (process {state.pid})")
        for name, process in (state.services | state.children).items():
            typer.echo(_line(name, process))
    if not summary["healthy"]:
        raise typer.Exit(ExitCode.FAILURES)


def logs(
    name: Annotated[str | None, typer.Argument(help="A process, such as web or engine-1.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as it grows.")] = False,
    lines: Annotated[int, typer.Option("-n", min=0, help="How many last lines to show.")] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show the last lines of every log, or of one."""
    paths = _log_paths(load_settings(data_dir), name)
    for path in paths:
        for line in _tail(path, lines):
            _show_log_line(path, line, as_json, alone=name is not None)
    if follow:
        try:
            for path, line in _grown(paths):
                _show_log_line(path, line, as_json, alone=name is not None)
        except KeyboardInterrupt:
            return


def doctor(
    data_dir: DataDir = None,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    as_json: AsJson = False,
) -> None:
    """Check the installation and name a remedy for whatever is wrong."""
    checks: list[Check] = []
    for check in examine(load_settings(data_dir), UpOptions(host, port)):
        checks.append(check)
        if not as_json:
            typer.echo(f"{check.verdict.value:<8} {check.name}: {check.detail}")
            if check.remedy:
                typer.echo(f"         {check.remedy}")
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(check) for check in checks]))
    if any(check.verdict is Verdict.PROBLEM for check in checks):
        raise typer.Exit(ExitCode.FAILURES)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _fail(error: RunnerError) -> None:
    typer.echo(error.message, err=True)
    raise typer.Exit(_EXIT_CODES.get(error.code, ExitCode.FAILURES)) from error


def _summary(state: UpState) -> dict[str, object]:
    processes = state.services | state.children
    return {
        "running": True,
        "ready": state.ready,
        "healthy": all(process.state == "running" for process in processes.values()),
        "url": state.url,
        "port": state.port,
        "pid": state.pid,
        "uptime_seconds": _uptime(state.created),
        "services": {name: _process(process) for name, process in state.services.items()},
        "children": {name: _process(process) for name, process in state.children.items()},
    }


def _process(process: ProcessState) -> dict[str, object]:
    return {
        "pid": process.pid,
        "state": process.state,
        "restarts": process.restarts,
        "uptime_seconds": _uptime(process.created),
    }


def _uptime(created: float | None) -> int | None:
    return None if created is None else max(0, int(datetime.now(UTC).timestamp() - created))


def _line(name: str, process: ProcessState) -> str:
    seconds = _uptime(process.created)
    uptime = (
        "" if seconds is None else f"up {seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    )
    pid = "-" if process.pid is None else process.pid
    return f"  {name:<10} {process.state:<8} {pid:>8}  {uptime:<14} restarts {process.restarts}"


def _show_stopped(settings: Settings, as_json: bool) -> None:
    """Services may well run without a supervisor: another host's, or orphans of a killed one."""
    urls = addresses(settings)
    answering = urls is not None and running(settings.data_dir) == urls
    if as_json:
        typer.echo(json.dumps({"running": False, "services_answer": answering}))
        return
    services = " (its services still answer; `tokenmill down` stops them)" if answering else ""
    typer.echo(f"Nothing runs on {settings.data_dir}{services}. Start with `tokenmill up`.")


def _log_paths(settings: Settings, name: str | None) -> list[Path]:
    folder = settings.data_dir / "logs"
    paths = sorted(folder.glob("*.log"))
    if name is not None:
        chosen = [path for path in paths if path.stem == name]
        if not chosen:
            known = ", ".join(path.stem for path in paths) or "none yet"
            _tell(f"There is no log of {name!r} in {folder}; there is: {known}.")
            raise typer.Exit(ExitCode.USAGE)
        return chosen
    if not paths:
        _tell(f"There are no logs in {folder} yet.")
        raise typer.Exit(ExitCode.UNREACHABLE)
    return paths


def _tail(path: Path, lines: int) -> Iterator[str]:
    with path.open(errors="replace") as file:
        for line in deque(file, maxlen=lines):
            yield line.rstrip("\n")


def _grown(paths: list[Path]) -> Iterator[tuple[Path, str]]:
    """New whole lines as they come; a file that was set aside is followed under its name."""
    ends = {path: path.stat().st_size for path in paths}
    while True:
        for path in paths:
            if not path.exists():
                continue
            if path.stat().st_size < ends[path]:
                ends[path] = 0
            with path.open("rb") as file:
                file.seek(ends[path])
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    yield path, line.decode(errors="replace").rstrip("\n")
                    ends[path] = file.tell()
        time.sleep(_FOLLOW_SECONDS)


def _show_log_line(path: Path, line: str, as_json: bool, *, alone: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"name": path.stem, "line": line}))
    else:
        typer.echo(line if alone else f"{path.stem:<10} {line}")
