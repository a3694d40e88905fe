"""``tokenmill estimate``: what a file will take, before anything runs."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from runner.cli.console import AsJson, DataDir, money, print_json, print_table
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import installation
from runner.domain.estimate import Basis, Estimate, Range
from runner.services import projects
from runner.services.file_estimates import FileEstimate, FileEstimator, Question

_READ_BYTES = 1024**2
_PATIENCE_SECONDS = 3600.0  # whoever sits at a terminal may interrupt
_LINES_NAMED = 10


def register(parent: typer.Typer) -> None:
    """Add ``estimate`` to the command line."""
    parent.command()(estimate)


def estimate(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A JSONL file.")],
    model: Annotated[str | None, typer.Option(help="For lines that name no model.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Else the url of the file's first line.")
    ] = None,
    project: Annotated[str, typer.Option(help="The project whose history counts.")] = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Count a file's prompts here, and tell what a job of it would take; nothing is kept."""
    with installation(data_dir) as runtime:
        estimator = FileEstimator(runtime.sessions, runtime.settings, runtime.counters.open)
        with runtime.transaction() as session:
            project_id = projects.find_project(session, project)
        defaults = None if model is None else msgspec.json.encode({"model": model})
        question = Question(project_id, endpoint, defaults, _PATIENCE_SECONDS)
        told = estimator.sent(_pieces(file), question)
    if as_json:
        print_json(told)
    else:
        _show(told)
    if told.fault_count or told.refused or told.too_long:
        raise typer.Exit(ExitCode.FAILURES)


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece


def _show(told: FileEstimate) -> None:
    expected = told.estimate
    how = "exact" if expected.is_exact else "by bytes"
    typer.echo(f"{expected.lines:,} lines for {' and '.join(told.models)} at {told.endpoint}")
    typer.echo(
        f"{expected.input_tokens:,} input tokens ({how}), {expected.cached_tokens:,} of them in "
        f"shared prefixes; the longest prompt has {expected.longest:,}."
    )
    rows = [("output tokens", *_each(expected.output, _count)), ("billed", *_each(expected.billed))]
    if expected.run is not None:
        rows.append(("cost to run", *_each(expected.run)))
    if expected.device_us is not None:
        rows.append(("device seconds", *_each(expected.device_us, _seconds)))
    if expected.wait_us is not None:
        rows.append(("seconds to the end", *_each(expected.wait_us, _seconds)))
    print_table(("", "low", "likely", "high"), rows)
    typer.echo(_words(expected))
    _show_faults(told)


def _each(figure: Range, shown: Callable[[int], str] = money) -> tuple[str, str, str]:
    return shown(figure.low), shown(figure.likely), shown(figure.high)


def _count(number: int) -> str:
    return f"{number:,}"


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:,.1f}"


def _words(told: Estimate) -> str:
    """What the output and the times rest on."""
    match told.basis:
        case Basis.MAX_TOKENS:
            rests = "There is no history yet: the output is all that was asked for."
        case Basis.MODEL:
            rests = f"The output rests on {told.history_lines:,} earlier lines of this model."
        case Basis.SCHEDULE:
            rests = f"The output rests on {told.history_lines:,} earlier lines of this schedule."
    if told.device_us is None:
        return f"{rests} The model's speed was never measured."
    return rests if told.wait_us else f"{rests} No worker runs the model, so its end is not known."


def _show_faults(told: FileEstimate) -> None:
    for fault in told.faults[:_LINES_NAMED]:
        typer.echo(f"line {fault.line}: {fault.message} [{fault.code}]")
    if told.fault_count > _LINES_NAMED:
        typer.echo(f"… and {told.fault_count - _LINES_NAMED:,} more faults")
    if told.too_long:
        named = ", ".join(str(number) for number in told.too_long_lines[:_LINES_NAMED])
        more = " …" if told.too_long > _LINES_NAMED else ""
        typer.echo(f"{told.too_long:,} prompts are too long for the model: lines {named}{more}")
    if told.refused:
        typer.echo(f"{told.refused:,} lines would be refused for another reason.")
    if told.equal:
        typer.echo(
            f"{told.equal:,} lines are equal to earlier ones: `submit --dedupe job` would not "
            "compute them."
        )
