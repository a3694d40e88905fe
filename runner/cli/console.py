"""What every verb shares: its options, and how it prints.

Results go to standard output, everything else to standard error.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table

DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Where everything is kept; else TOKENMILL_DATA_DIR or .tokenmill."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]

progress_console = Console(stderr=True)


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
