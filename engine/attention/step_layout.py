"""A step's layout on the device, and its queries cut into tiles, for kernels that run in tiles."""

from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.backend import BatchLayout


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles over the queries of neighbouring sequences.

    Attributes:
        sequences: int32 [tiles], the sequence of each.
        queries: int32 [tiles], its first query in that sequence.
        tokens: the tokens of the batch that the tiles cover.
        longest: the longest context among the sequences, in tokens.
    """

    sequences: torch.Tensor
    queries: torch.Tensor
    tokens: slice
    longest: int


class StepLayout:
    """What the kernels of one step read; tensors are int32 and were copied at once.

    Attributes:
        slots: [tokens], where each token's keys and values go: block * block_size + offset.
        starts, query_lens, context_lens: [sequences], as in BatchLayout.
        tables: [sequences, blocks of the longest].
    """

    def __init__(self, layout: BatchLayout, block_size: int, device: torch.device) -> None:
        self._device = device
        self._query_lens = np.asarray(layout.query_lens, dtype=np.int32)
        self._context_lens = np.asarray(layout.context_lens, dtype=np.int32)
        starts = np.cumsum(self._query_lens, dtype=np.int32) - self._query_lens
        tables = padded_tables(layout.block_tables, -(-self._context_lens // block_size))
        slots = _written_slots(tables, self._query_lens, self._context_lens, block_size)
        self.slots, self.starts, self.query_lens, self.context_lens, flat = _upload(
            [slots, starts, self._query_lens, self._context_lens, tables.reshape(-1)], device
        )
        self.tables = flat.view(tables.shape)
        self._num_single = int((self._query_lens == 1).sum())
        self._tiles: dict[tuple[bool, int], Tiles | None] = {}

    def tiles(self, is_single: bool, tile_queries: int) -> Tiles | None:
        """Tiles of `tile_queries` over the sequences with one query, or over all others.

        Kept for the layers to come; None where there are no such sequences.
        """
        wanted = (is_single, tile_queries)
        if wanted not in self._tiles:
            rows = slice(0, self._num_single) if is_single else slice(self._num_single, None)
            self._tiles[wanted] = self._cut(rows, tile_queries)
        return self._tiles[wanted]

    def _cut(self, rows: slice, tile_queries: int) -> Tiles | None:
        query_lens = self._query_lens[rows]
        if not len(query_lens):
            return None
        counts = -(-query_lens // tile_queries)
        sequences = np.repeat(np.arange(len(counts), dtype=np.int32) + rows.start, counts)
        first_tiles = np.repeat(np.cumsum(counts) - counts, counts)
        queries = (np.arange(len(sequences)) - first_tiles) * tile_queries
        on_device = _upload([sequences, queries.astype(np.int32)], self._device)
        # Sequences with one query come first, so a token's number there is its sequence's.
        return Tiles(on_device[0], on_device[1], rows, int(self._context_lens[rows].max()))


def padded_tables(block_tables: list[list[int]], widths: np.ndarray) -> np.ndarray:
    """[sequences, blocks of the longest]: only the blocks that the contexts reach."""
    tables = np.zeros((len(widths), widths.max()), dtype=np.int32)
    for row, table, width in zip(tables, block_tables, widths.tolist(), strict=True):
        row[:width] = table[:width]
    return tables


def _written_slots(
    tables: np.ndarray, query_lens: np.ndarray, context_lens: np.ndarray, block_size: int
) -> np.ndarray:
    """[tokens]: the slots of each sequence's newest `query_lens` positions."""
    rows = np.repeat(np.arange(len(query_lens)), query_lens)
    first_tokens = np.cumsum(query_lens) - query_lens
    positions = np.arange(len(rows)) - (first_tokens - (context_lens - query_lens))[rows]
    blocks = tables[rows, positions // block_size]
    slots: np.ndarray = blocks * block_size + positions % block_size
    return slots.astype(np.int32)


def _upload(parts: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
    """Int32 arrays in one copy; each begins at a multiple of 16 bytes, which kernels rely on."""
    sizes = [-(-len(part) // 4) * 4 for part in parts]
    buffer = torch.zeros(sum(sizes), dtype=torch.int32, pin_memory=device.type == "cuda")
    view = buffer.numpy()
    for part, end, size in zip(parts, np.cumsum(sizes).tolist(), sizes, strict=True):
        view[end - size : end - size + len(part)] = part
    pieces = torch.split(buffer.to(device, non_blocking=True), sizes)
    return [piece[: len(part)] for piece, part in zip(pieces, parts, strict=True)]
