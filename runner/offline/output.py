"""The files a run leaves: each is written beside its place and renamed when it is complete."""

import csv
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from runner.domain.errors import InvalidRequest
from runner.offline.answers import RowAnswer
from runner.offline.cells import neutral
from runner.offline.table import ANSWER_COLUMNS, Table, is_table, parquet_module

_encoder = msgspec.json.Encoder(decimal_format="number")


def check_output(source: Path, target: Path, errors: Path | None = None) -> None:
    """Refuse before the run what could not be written after it.

    Raises:
        InvalidRequest: the form of the output does not fit the input, or a file has no place.
    """
    written = [target] if errors is None else [target, errors]
    for file in written:
        if not os.access(file.parent, os.W_OK | os.X_OK) or file.is_dir():
            raise InvalidRequest(f"{file} cannot be written: name a file in a folder of yours.")
    if len({file.resolve() for file in (source, *written)}) < 1 + len(written):
        raise InvalidRequest("Input, output and errors must be different files.")
    if not is_table(target):
        return
    if not is_table(source):
        raise InvalidRequest(f"A JSONL input has a JSONL output; name one instead of {target.name}")
    if target.suffix.lower() == ".parquet":
        parquet_module()


def write_lines(target: Path, lines: Iterable[bytes]) -> int:
    """Write lines as they are; returns how many."""
    count = 0
    with _complete(target) as partial, partial.open("wb") as stream:
        for line in lines:
            stream.write(line)
            count += 1
    return count


def write_table(target: Path, table: Table, answers: Iterable[RowAnswer]) -> None:
    """Write a table with its answers, in the form that the target's name says."""
    pairs = zip(table.rows(), answers, strict=True)
    rows = ({**row, **asdict(answer)} for row, answer in pairs)
    writers: dict[str, Callable[[Path, Table, Iterator[dict[str, Any]]], None]] = {
        ".csv": _write_csv,
        ".parquet": _write_parquet,
    }
    with _complete(target) as partial:
        writers.get(target.suffix.lower(), _write_json)(partial, table, rows)


def _write_csv(path: Path, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    columns = (*table.columns, *ANSWER_COLUMNS)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([neutral(name) for name in columns])
        for row in rows:
            cost = row["cost"]
            row["cost"] = None if cost is None else f"{cost:.9f}"
            writer.writerow([neutral(row[name]) for name in columns])


def _write_parquet(path: Path, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    parquet_module().write_parquet(path, table, rows)


def _write_json(path: Path, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    with path.open("wb") as stream:
        for row in rows:
            stream.write(_encoder.encode(row) + b"\n")


@contextmanager
def _complete(target: Path) -> Iterator[Path]:
    """A file beside the target that takes its place once it is whole and on disk."""
    partial = target.with_name(f".{target.name}.part")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
