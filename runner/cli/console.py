"""What every verb shares: its options, how it prints, and how it fails.

Results go to standard output, everything else to standard error. Exit codes: 0 done, 1 the job had
failures, 2 wrong use, 3 the services cannot be reached, 130 interrupted.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table
from sqlalchemy.exc import OperationalError

from runner.config import load_settings
from runner.db import migrate
from runner.domain.errors import RunnerError, Unavailable
from runner.embedded import EmbeddedServices
from runner.runtime import NotRunning, Runtime, find_services, open_runtime
from runner.supervisor.up_state import is_up

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where everything is kept; else TOKENMILL_DATA_DIR or .tokenmill."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

progress_console = Console(stderr=True)


class ExitCode(IntEnum):
    """How a verb ended."""

    DONE = 0
    FAILURES = 1
    USAGE = 2
    UNREACHABLE = 3
    INTERRUPTED = 130


@contextmanager
def installation(data_dir: Path | None) -> Iterator[Runtime]:
    """The runtime of an installation that is up; else its services are started meanwhile."""
    settings = load_settings(data_dir)
    with failing_clearly():
        try:
            find_services(settings)
        except NotRunning:
            _refuse_while_up(settings.data_dir)
            with EmbeddedServices(
                settings.data_dir,
                database_url=settings.database_url,
                broker_url=settings.broker_url,
            ) as urls:
                migrate.upgrade(urls.database_url)
                yield from _opened(data_dir)
        else:
            yield from _opened(data_dir)


def _refuse_while_up(data_dir: Path) -> None:
    """Services that were started here would be stopped at the end, under those who use them."""
    if is_up(data_dir):
        raise Unavailable(
            f"The database of {data_dir} does not answer at the moment. Try again in some "
            "seconds; `tokenmill status` shows what runs."
        )


def _opened(data_dir: Path | None) -> Iterator[Runtime]:
    runtime = open_runtime(load_settings(data_dir))
    try:
        yield runtime
    finally:
        runtime.close()


@contextmanager
def failing_clearly() -> Iterator[None]:
    """Turn expected errors into one sentence on standard error and an exit code."""
    try:
        yield
    except RunnerError as error:
        typer.echo(f"error: {error.message} [{error.code}]", err=True)
        is_away = error.code in (NotRunning.code, Unavailable.code)
        code = ExitCode.UNREACHABLE if is_away else ExitCode.USAGE
        raise typer.Exit(code) from None
    except OperationalError as error:
        typer.echo(f"error: the database cannot be reached: {error.orig}", err=True)
        raise typer.Exit(ExitCode.UNREACHABLE) from None


def print_json(value: object) -> None:
    """One JSON value on standard output."""
    typer.echo(json.dumps(plain(value), indent=2 if sys.stdout.isatty() else None))


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; a dash stands for nothing. Cells are text, not Rich's markup."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        numbers = all(isinstance(row[columns.index(column)], int | float) for row in rows)
        table.add_column(column, justify="right" if rows and numbers else "left")
    for row in rows:
        table.add_row(*("–" if cell is None else str(cell) for cell in row))
    width = None if sys.stdout.isatty() else 160
    Console(width=width, markup=False, emoji=False).print(table)


def plain(value: object) -> Any:  # noqa: ANN401 - JSON is what it is
    """A record as JSON types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in asdict(value).items()}
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID | Path):
        return str(value)
    return value


def money(nano: int, places: int = 6) -> str:
    """Nano-units as a decimal text, exact to the places shown."""
    return f"{nano / 1_000_000_000:.{places}f}"


def age(moment: datetime | None) -> str | None:
    """A moment in local time, to the second."""
    return None if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
