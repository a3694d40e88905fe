"""Tables of rows: CSV and Parquet files as input, read as a stream and as often as needed."""

import csv
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, cast

from runner.domain.errors import InvalidRequest

ANSWER_COLUMNS = ("answer", "finish_reason", "error", "prompt_tokens", "output_tokens", "cost")
_MOST_CELL_LETTERS = 10 * 1024**2

Row = dict[str, Any]


class Table(Protocol):
    """A file of rows. ``columns`` are named apart from each other and from ``ANSWER_COLUMNS``."""

    columns: tuple[str, ...]

    def rows(self) -> Iterator[Row]:
        """All rows in order, read anew."""


def is_table(path: Path) -> bool:
    """Whether a file is a table by its name."""
    return path.suffix.lower() in (".csv", ".parquet")


def open_table(path: Path) -> Table:
    """The table in a file.

    Raises:
        InvalidRequest: it cannot be read, or its columns cannot be told apart.
    """
    is_parquet = path.suffix.lower() == ".parquet"
    table = cast(Table, parquet_module().ParquetTable(path)) if is_parquet else CsvTable(path)
    _check_columns(path, table.columns)
    return table


def parquet_module() -> Any:  # noqa: ANN401 - a module
    """What reads and writes Parquet; its library is not installed by default."""
    try:
        return import_module("runner.offline.parquet")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyarrow":
            raise
        raise InvalidRequest(
            "Parquet needs pyarrow: pip install 'tokenmill[parquet]'.", code="pyarrow_missing"
        ) from None


class CsvTable:
    """A CSV file in UTF-8 whose first row names the columns; every cell is text."""

    def __init__(self, path: Path) -> None:
        self._path = path
        csv.field_size_limit(_MOST_CELL_LETTERS)
        header = next(self._records(), None)
        if header is None:
            raise InvalidRequest(f"{path.name} is empty; its first row must name the columns.")
        self.columns = tuple(header)

    def rows(self) -> Iterator[Row]:
        """All rows in order; blank lines are none."""
        records = self._records()
        next(records)
        for number, record in enumerate(records, start=1):
            if len(record) != len(self.columns):
                raise InvalidRequest(
                    f"Row {number} of {self._path.name} has {len(record)} cells; the first row "
                    f"names {len(self.columns)} columns.",
                    code="bad_row",
                )
            yield dict(zip(self.columns, record, strict=True))

    def _records(self) -> Iterator[list[str]]:
        try:
            with self._path.open(encoding="utf-8-sig", newline="") as stream:
                yield from (record for record in csv.reader(stream, strict=True) if record)
        except (csv.Error, UnicodeDecodeError) as error:
            raise InvalidRequest(f"{self._path.name} cannot be read as CSV: {error}.") from None


def _check_columns(path: Path, columns: tuple[str, ...]) -> None:
    twice = sorted({name for name in columns if columns.count(name) > 1})
    if twice:
        raise InvalidRequest(f"{path.name} has the column {twice[0]!r} more than once.")
    taken = [name for name in columns if name in ANSWER_COLUMNS]
    if taken:
        raise InvalidRequest(
            f"{path.name} has a column {taken[0]!r}, which the output adds; rename it first."
        )
