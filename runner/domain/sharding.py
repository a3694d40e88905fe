"""The order of a job's lines: neighbours that share a prefix come together, in shards.

The key of a line is three checksums, of the first 256, 1,024 and 4,096 bytes of its prompt as
written in the file. Equal keys mean a shared beginning (a collision costs only order, never a
result), so grouping by the three keys in turn gathers prefix neighbourhoods without a template or
tokenizer. Groups keep the order of their first line, lines keep their order inside a group.
"""

import zlib
from array import array
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

PREFIX_BYTES = (256, 1024, 4096)
_SHARED_ENOUGH = 0.9  # fewer distinct beginnings than this share of lines: grouping pays


class PrefixKeys:
    """The keys of all lines of one job, 12 bytes a line, collected while the file streams by."""

    def __init__(self) -> None:
        self._columns = tuple(array("I") for _ in PREFIX_BYTES)

    def __len__(self) -> int:
        return len(self._columns[0])

    def add(self, prompt: bytes) -> None:
        """Note the next line's prompt."""
        checksum, start = 0, 0
        for column, end in zip(self._columns, PREFIX_BYTES, strict=True):
            checksum = zlib.crc32(prompt[start:end], checksum)
            column.append(checksum)
            start = end

    def order(self) -> npt.NDArray[np.int64]:
        """Positions of the lines in prefix order; line order when nothing much is shared."""
        count = len(self)
        coarse, *finer = (np.frombuffer(column, dtype=np.uint32) for column in self._columns)
        if count == 0 or len(np.unique(coarse)) > _SHARED_ENOUGH * count:
            return np.arange(count, dtype=np.int64)
        ranks = [_rank_of_first(column) for column in (coarse, *finer)]
        return np.lexsort(tuple(reversed(ranks)))


def _rank_of_first(column: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """For each line, the position of the first line with the same key."""
    _, first, inverse = np.unique(column, return_index=True, return_inverse=True)
    return first[inverse]


def shards_of(idx: npt.NDArray[np.int64], shard_lines: int) -> Iterator[list[int]]:
    """Cut line numbers, already in order, into shards of at most ``shard_lines``."""
    for start in range(0, len(idx), shard_lines):
        yield idx[start : start + shard_lines].tolist()
