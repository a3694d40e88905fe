"""``tokenmill run``: a file in, a file out, and no server to start."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.markup import escape

from runner.cli.console import AsJson, money, print_json, print_table, progress_console
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import failing_clearly
from runner.cli.jobs import show_faults
from runner.cli.progress import watch
from runner.config import arm_failpoints, load_settings
from runner.offline.clerk import EngineFailed
from runner.offline.output import check_output
from runner.offline.place import Order, Place
from runner.offline.requests import PromptOptions
from runner.offline.run import Refused, Run, RunOptions, at_work, summary_of
from runner.offline.table import is_table
from runner.services.job_records import JobRecord


def register(parent: typer.Typer) -> None:
    """Add ``run`` to the command line."""
    parent.command()(run)


def run(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT", exists=True, dir_okay=False, help="JSONL, .csv or .parquet."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="OUT", help="The answers.")],
    model: Annotated[
        str, typer.Option(help="A folder, a .gguf file, a model's name, or stub: (no weights).")
    ],
    errors: Annotated[
        Path | None, typer.Option(help="Lines that failed; else OUT.errors (tables: a column).")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="Tables: the prompt, e.g. 'Sum up: {text}'.")
    ] = None,
    prompt_column: Annotated[
        str | None, typer.Option(help="Tables: the column that is the prompt.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Tables: a system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tables: of each answer.")] = None,
    temperature: Annotated[float | None, typer.Option(min=0, max=2, help="Tables.")] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Run the good lines of a file with bad ones.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Forget what an earlier run of this has done.")
    ] = False,
    data_dir: Annotated[
        Path | None, typer.Option(help="Where the run keeps its state; else OUT.tokenmill.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Answer a file with a model, here and now; the same command goes on where it was stopped."""
    options = RunOptions(
        source=source,
        output=output,
        errors=errors or (None if is_table(source) else _beside(output, ".errors")),
        model=str(Path(model).resolve()) if Path(model).exists() else model,
        prompts=PromptOptions(template, prompt_column, system, max_tokens, temperature),
        skip_invalid=skip_invalid,
    )
    place = Place(data_dir or _beside(output, ".tokenmill"))
    with failing_clearly(), _resumable(place):
        summary = _answer(options, place, fresh)
    if as_json:
        print_json(summary)
    else:
        _show(summary)
    if summary["failed"]:
        raise typer.Exit(ExitCode.FAILURES)


def _answer(options: RunOptions, place: Place, fresh: bool) -> dict[str, Any]:
    """Bring a run to its end; returns its summary."""
    settings, home = load_settings(place.folder), load_settings()
    arm_failpoints(settings)
    check_output(options.source, options.output, options.errors)
    requests = options.requests(settings.max_line_bytes)
    place.take(_tell)
    try:
        if fresh:
            place.empty()
        order = options.order()
        summary = place.begin(order)
        if summary is not None and options.output.is_file():
            place.finish(order, summary)  # it may have been killed while it cleared up
            _tell(f"Done already; {options.output} is complete. Run it anew with --fresh.")
            return summary
        if summary is not None:
            place.empty()
            place.begin(order)
        with at_work(options, requests, place, settings, home) as work:
            job = _watched(work, settings.grace_seconds)
            if job.state == "completed":
                work.write(requests)
            lanes = work.lanes()
        return _finished(place, order, job, summary_of(options, job, lanes))
    except Refused:
        place.remove()
        raise
    finally:
        place.leave()


def _watched(work: Run, grace_seconds: float) -> JobRecord:
    try:
        return watch(work.look)
    except KeyboardInterrupt:
        _tell(f"Stopping; lines in hand have {grace_seconds:.0f} s to end. Again: stop at once.")
        raise


def _finished(
    place: Place, order: Order, job: JobRecord, summary: dict[str, Any]
) -> dict[str, Any]:
    """The summary of a job that has ended; a file that was refused leaves nothing behind."""
    if job.state != "completed":
        place.remove()
        show_faults(job)
        raise typer.Exit(ExitCode.USAGE)
    place.finish(order, summary)
    return summary


@contextmanager
def _resumable(place: Place) -> Iterator[None]:
    """Ctrl-C and TERM stop a run in order; so does an engine that cannot be kept running."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        _tell(f"Stopped. The same command goes on from here; the state is in {place.folder}.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except EngineFailed as error:
        typer.echo(f"error: {error.message} [{error.code}]", err=True)
        _tell("What is done is kept: the same command tries again, --fresh forgets it.")
        raise typer.Exit(ExitCode.UNREACHABLE) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(summary: dict[str, Any]) -> None:
    seconds = summary["seconds"]
    speed = summary["output_tokens"] / seconds if seconds else None
    rows = [
        ("lines", f"{summary['succeeded']} answered, {summary['failed']} failed"),
        ("tokens in", f"{summary['prompt_tokens']} ({summary['cached_tokens']} cached)"),
        ("tokens out", summary["output_tokens"]),
        ("time", speed and f"{seconds:.1f} s, {speed:,.0f} tokens/s"),
        *(("lane", _lane(lane)) for lane in summary["lanes"]),
        ("billed", money(summary["billed_nano"], 9)),
        ("cost to run", money(summary["run_cost_nano"], 9)),
        ("output", summary["output"]),
        ("errors", summary["errors"]),
    ]
    print_table(("", ""), rows)


def _lane(lane: dict[str, Any]) -> str:
    slower = f", slower: {escape(lane['reason'])}" if lane["reason"] else ""
    return f"{lane['name']} ({lane['lines']} lines{slower})"


def _beside(output: Path, suffix: str) -> Path:
    return output.with_name(output.name + suffix)


def _tell(text: str) -> None:
    progress_console.print(text, highlight=False, soft_wrap=True)
