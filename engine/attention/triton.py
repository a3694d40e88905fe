"""Paged attention by our Triton kernels, for CUDA devices.

Sequences with one query are cut into small tiles and the others into large ones, each kind with a
launch of its own: a large tile would leave most of its rows empty in decode.
"""

from dataclasses import dataclass

import torch

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.step_layout import StepLayout, Tiles
from engine.kernels.paged_attention import merge_splits, paged_attention
from engine.kernels.store_kv import store_kv

MAX_SPLITS = 16
KEYS_PER_SPLIT = 256
"""Fewer keys than this aren't worth a program of their own."""
PROGRAMS_PER_UNIT = 2
"""With fewer programs than this for each multiprocessor the keys are split."""
MIN_DOT = 16
"""The matrix unit's smallest side."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is compiled for one kind of tile."""

    tile_rows: int
    tile_keys: int
    num_warps: int
    num_stages: int


def choose_launch(shape: LayerShape, group: int, itemsize: int, is_single: bool) -> Launch:
    """Tile sizes for a layer: a fixed table, for tuning at run time would stall a job.

    Wide heads and float32 take smaller tiles, since a stage of keys and values must fit into
    shared memory beside the queries.
    """
    is_wide = max(shape.key_dim, shape.value_dim) * itemsize > 256
    tile_keys = 32 if is_wide else 64
    if is_single:
        return Launch(max(MIN_DOT, _power_of_two(group)), tile_keys, 4, 2 if is_wide else 3)
    return Launch(max(64, _power_of_two(group)), tile_keys, 4, 2)


def kernel_constants(shape: LayerShape, group: int, launch: Launch, splits: int) -> dict[str, int]:
    """What the kernel is compiled for, as far as shapes and tiles decide it."""
    return {
        "KV_HEADS": shape.num_kv_heads,
        "GROUP": group,
        "KEY_DIM": shape.key_dim,
        "VALUE_DIM": shape.value_dim,
        "KEY_PAD": max(MIN_DOT, _power_of_two(shape.key_dim)),
        "VALUE_PAD": max(MIN_DOT, _power_of_two(shape.value_dim)),
        "TILE_ROWS": launch.tile_rows,
        "TILE_KEYS": launch.tile_keys,
        "SPLITS": splits,
    }


class TritonAttention:
    """The Triton backend; see AttentionBackend for the contract.

    A layer's pools are [blocks, kv heads, block size, dim].
    """

    name = "triton"

    def __init__(
        self,
        shapes: list[LayerShape],
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._shapes = shapes
        self._block_size = block_size
        self._device = device
        self._dtype = dtype
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._step: StepLayout | None = None
        self._num_units = _num_units(device)

    def block_bytes(self) -> int:
        elements = sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in self._shapes)
        return elements * self._block_size * self._dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        self._keys = [self._pool(num_blocks, s.num_kv_heads, s.key_dim) for s in self._shapes]
        self._values = [self._pool(num_blocks, s.num_kv_heads, s.value_dim) for s in self._shapes]

    def begin(self, layout: BatchLayout) -> None:
        self._step = StepLayout(layout, self._block_size, self._device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        step, shape = self._step, self._shapes[layer]
        assert step is not None
        self._store(layer, _dense_rows(key), _dense_rows(value), step.slots)
        query = _dense_rows(query)
        out = query.new_empty(query.shape[0], query.shape[1], shape.value_dim)
        group = query.shape[1] // shape.num_kv_heads
        for is_single in (True, False):
            launch = choose_launch(shape, group, self._dtype.itemsize, is_single)
            tiles = step.tiles(is_single, launch.tile_rows // group)
            if tiles is not None:
                self._attend_tiles(layer, launch, tiles, (query, out), options)
        return out

    def _pool(self, blocks: int, heads: int, dim: int) -> torch.Tensor:
        shape = (blocks, heads, self._block_size, dim)
        return torch.zeros(shape, dtype=self._dtype, device=self._device)

    def _store(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        shape = self._shapes[layer]
        store_kv[(key.shape[0],)](
            self._keys[layer],
            self._values[layer],
            key,
            value,
            slots,
            key.stride(0),
            key.stride(1),
            value.stride(0),
            value.stride(1),
            KV_HEADS=shape.num_kv_heads,
            KEY_DIM=shape.key_dim,
            VALUE_DIM=shape.value_dim,
            HEADS_PAD=_power_of_two(shape.num_kv_heads),
            KEY_PAD=_power_of_two(shape.key_dim),
            VALUE_PAD=_power_of_two(shape.value_dim),
            BLOCK_SIZE=self._block_size,
        )

    def _attend_tiles(
        self,
        layer: int,
        launch: Launch,
        tiles: Tiles,
        rows: tuple[torch.Tensor, torch.Tensor],
        options: AttentionOptions,
    ) -> None:
        """Attend the queries of one kind of tile; `rows` are the batch's queries and outputs."""
        step, shape = self._step, self._shapes[layer]
        assert step is not None
        query, out = (side[tiles.tokens] for side in rows)
        num_tokens, num_heads, _ = query.shape
        splits = self._num_splits(tiles, shape.num_kv_heads, options.window)
        parts, lse = out, out
        if splits > 1:
            parts = self._scratch(num_tokens, num_heads, splits, shape.value_dim)
            lse = self._scratch(num_tokens, num_heads, splits)
        paged_attention[(len(tiles.sequences), shape.num_kv_heads, splits)](
            parts,
            lse,
            query,
            tiles.tokens.start,
            self._keys[layer],
            self._values[layer],
            step.tables,
            step.starts,
            step.query_lens,
            step.context_lens,
            tiles.sequences,
            tiles.queries,
            out if options.sinks is None else options.sinks,
            options.scale,
            options.softcap or 0.0,
            options.window or 0,
            query.stride(0),
            query.stride(1),
            step.tables.stride(0),
            **kernel_constants(shape, num_heads // shape.num_kv_heads, launch, splits),
            BLOCK_SIZE=self._block_size,
            HAS_SOFTCAP=options.softcap is not None,
            HAS_WINDOW=options.window is not None,
            HAS_SINKS=options.sinks is not None,
            # TF32 would lose what float32 is chosen for.
            PRECISION="ieee" if self._dtype == torch.float32 else "tf32",
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            enable_fp_fusion=True,
        )
        if splits > 1:
            merge_splits[(num_tokens * num_heads,)](
                out,
                parts,
                lse,
                VALUE_DIM=shape.value_dim,
                VALUE_PAD=_power_of_two(shape.value_dim),
                SPLITS=splits,
            )

    def _num_splits(self, tiles: Tiles, kv_heads: int, window: int | None) -> int:
        """Over how many programs the keys of a tile are dealt: a power of two."""
        num_keys = tiles.longest if window is None else min(tiles.longest, window)
        programs = len(tiles.sequences) * kv_heads
        wanted = -(-PROGRAMS_PER_UNIT * self._num_units // programs)
        useful = -(-num_keys // KEYS_PER_SPLIT)
        return min(_power_of_two(min(wanted, useful)), MAX_SPLITS)

    def _scratch(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.float32, device=self._device)


def _dense_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The kernels take any strides of tokens and heads, but the numbers of a head side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()


def _num_units(device: torch.device) -> int:
    """The device's multiprocessors; the interpreter on a CPU counts as one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
