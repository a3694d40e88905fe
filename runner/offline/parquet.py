"""Parquet files in and out, a batch of rows at a time. Imported only where one is named."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from runner.domain.errors import InvalidRequest

_BATCH_ROWS = 1024
_GROUP_ROWS = 64 * _BATCH_ROWS
_ANSWER_FIELDS = (
    pa.field("answer", pa.string()),
    pa.field("finish_reason", pa.string()),
    pa.field("error", pa.string()),
    pa.field("prompt_tokens", pa.int64()),
    pa.field("output_tokens", pa.int64()),
    pa.field("cost", pa.decimal128(38, 9)),
)


class ParquetTable:
    """A Parquet file; values are Python's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.schema = pq.read_schema(path)
        except pa.ArrowInvalid as error:
            raise InvalidRequest(f"{path.name} cannot be read as Parquet: {error}") from None
        self.columns = tuple(self.schema.names)

    def rows(self) -> Iterator[dict[str, Any]]:
        """All rows in order."""
        with pq.ParquetFile(self._path) as file:
            for batch in file.iter_batches(_BATCH_ROWS):
                yield from batch.to_pylist()


def write_parquet(path: Path, table: object, rows: Iterable[dict[str, Any]]) -> None:
    """Write answered rows; the columns of a Parquet input keep their types, others are text."""
    if isinstance(table, ParquetTable):
        fields = list(table.schema)
    else:
        columns: tuple[str, ...] = getattr(table, "columns", ())
        fields = [pa.field(name, pa.string()) for name in columns]
    schema = pa.schema([*fields, *_ANSWER_FIELDS])
    rows = iter(rows)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(rows, _GROUP_ROWS)):
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
