"""Paged attention in plain torch: the oracle for faster backends, on any device.

Sequences with one query are gathered together into padded buckets of similar length; longer
queries are attended one sequence at a time. The pool of a layer is [slots, kv heads, dim], a slot
being block * block_size + offset.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape

MAX_PADDING = 0.25
"""A bucket's shortest sequence may be padded by this share of the longest."""
MIN_BUCKET_ROWS = 4
"""Below this many rows padding is cheaper than another bucket."""
MAX_BUCKET_KEYS = 1 << 16
"""Keys gathered at once, so that the copy stays small beside the pool."""


@dataclass(slots=True)
class _DecodeBucket:
    """Rows `start:end` of the batch, one query each, padded to the same number of keys.

    `slots` is [rows * keys], `lengths` is [rows]. Padding repeats the row's first slot, whose
    content is its own and finite. Masks are kept per window, for all layers of the step.
    """

    start: int
    end: int
    slots: torch.Tensor
    lengths: torch.Tensor
    masks: dict[int | None, torch.Tensor]


@dataclass(slots=True)
class _Prefill:
    """Rows `start:end` of the batch: the newest queries of one sequence of `context_len` keys."""

    start: int
    end: int
    context_len: int
    slots: torch.Tensor
    masks: dict[int | None, torch.Tensor]


class ReferenceAttention:
    """The plain torch backend; see AttentionBackend for the contract."""

    def __init__(
        self,
        shapes: list[LayerShape],
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.name = "torch reference"
        self._shapes = shapes
        self._block_size = block_size
        self._device = device
        self._dtype = dtype
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._slots = torch.empty(0, dtype=torch.long)
        self._buckets: list[_DecodeBucket] = []
        self._prefills: list[_Prefill] = []

    def block_bytes(self) -> int:
        elements = sum(s.num_kv_heads * (s.key_dim + s.value_dim) for s in self._shapes)
        return elements * self._block_size * self._dtype.itemsize

    def allocate(self, num_blocks: int) -> None:
        slots = num_blocks * self._block_size
        self._keys = [self._pool(slots, s.num_kv_heads, s.key_dim) for s in self._shapes]
        self._values = [self._pool(slots, s.num_kv_heads, s.value_dim) for s in self._shapes]

    def begin(self, layout: BatchLayout) -> None:
        tables = [
            _slots_of(np.asarray(table), self._block_size)[:context_len]
            for table, context_len in zip(layout.block_tables, layout.context_lens, strict=True)
        ]
        written = [slots[-n:] for slots, n in zip(tables, layout.query_lens, strict=True)]
        self._slots = torch.from_numpy(np.concatenate(written)).to(self._device)
        num_single = sum(n == 1 for n in layout.query_lens)
        self._buckets = [
            self._bucket(tables, start, end)
            for start, end in _bucket_bounds(layout.context_lens[:num_single])
        ]
        self._prefills = []
        start = num_single
        for slots, num_queries in zip(
            tables[num_single:], layout.query_lens[num_single:], strict=True
        ):
            end = start + num_queries
            on_device = torch.from_numpy(slots).to(self._device)
            self._prefills.append(_Prefill(start, end, len(slots), on_device, {}))
            start = end

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        keys, values = self._keys[layer], self._values[layer]
        keys.index_copy_(0, self._slots, key)
        values.index_copy_(0, self._slots, value)
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        for bucket in self._buckets:
            rows = slice(bucket.start, bucket.end)
            out[rows] = self._decode(bucket, query[rows], keys, values, options)
        for prefill in self._prefills:
            rows = slice(prefill.start, prefill.end)
            out[rows] = self._prefill(prefill, query[rows], keys, values, options)
        return out

    def _pool(self, slots: int, heads: int, dim: int) -> torch.Tensor:
        if self._device.type != "cpu":
            return torch.zeros(slots, heads, dim, dtype=self._dtype, device=self._device)
        # torch.zeros would write every page; the pool may be much larger than what a job touches.
        pages = np.zeros(slots * heads * dim * self._dtype.itemsize, dtype=np.uint8)
        return torch.from_numpy(pages).view(self._dtype).view(slots, heads, dim)

    def _bucket(self, tables: list[np.ndarray], start: int, end: int) -> _DecodeBucket:
        longest = len(tables[end - 1])
        padded = np.empty((end - start, longest), dtype=np.int64)
        for row, slots in zip(padded, tables[start:end], strict=True):
            row[: len(slots)] = slots
            row[len(slots) :] = slots[0]
        lengths = torch.tensor([len(slots) for slots in tables[start:end]], device=self._device)
        on_device = torch.from_numpy(padded.reshape(-1)).to(self._device)
        return _DecodeBucket(start, end, on_device, lengths, {})

    def _decode(
        self,
        bucket: _DecodeBucket,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """One query per row: the query heads of a kv head share its keys as extra queries."""
        rows, heads, dim = query.shape
        kv_heads = keys.shape[1]
        grouped = query.reshape(rows, kv_heads, heads // kv_heads, dim)
        k = keys.index_select(0, bucket.slots).view(rows, -1, kv_heads, dim).transpose(1, 2)
        v = values.index_select(0, bucket.slots).view(rows, -1, kv_heads, values.shape[2])
        mask = bucket.masks.get(options.window)
        if mask is None:
            mask = self._decode_mask(bucket, options.window)
            bucket.masks[options.window] = mask
        attended = _softmax_attention(grouped, k, v.transpose(1, 2), mask, options)
        return attended.reshape(rows, heads, values.shape[2])

    def _decode_mask(self, bucket: _DecodeBucket, window: int | None) -> torch.Tensor:
        """[rows, 1, 1, keys], True where the row's newest query sees the key."""
        num_keys = bucket.slots.shape[0] // bucket.lengths.shape[0]
        positions = torch.arange(num_keys, device=self._device)
        lengths = bucket.lengths[:, None]
        visible = positions < lengths
        if window is not None:
            visible &= positions >= lengths - window
        return visible[:, None, None, :]

    def _prefill(
        self,
        prefill: _Prefill,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Many queries of one sequence."""
        k = keys.index_select(0, prefill.slots)
        v = values.index_select(0, prefill.slots)
        mask = prefill.masks.get(options.window)
        if mask is None:
            mask = self._prefill_mask(prefill, options.window)
            prefill.masks[options.window] = mask
        attended = _softmax_attention(
            query.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            mask,
            options,
        )
        return attended[0].transpose(0, 1)

    def _prefill_mask(self, prefill: _Prefill, window: int | None) -> torch.Tensor:
        """[queries, keys], True where the query sees the key."""
        num_queries = prefill.end - prefill.start
        key_positions = torch.arange(prefill.context_len, device=self._device)
        query_positions = key_positions[prefill.context_len - num_queries :, None]
        visible = key_positions <= query_positions
        if window is not None:
            visible &= key_positions > query_positions - window
        return visible


def _slots_of(blocks: np.ndarray, block_size: int) -> np.ndarray:
    """Slots of whole blocks, in order: [blocks * block_size]."""
    return (blocks[:, None] * block_size + np.arange(block_size)).reshape(-1)


def _bucket_bounds(lengths: list[int]) -> list[tuple[int, int]]:
    """Cut ascending `lengths` into runs whose padding stays small."""
    bounds: list[tuple[int, int]] = []
    end = len(lengths)
    while end:
        longest = lengths[end - 1]
        max_rows = max(1, MAX_BUCKET_KEYS // longest)
        start = end - 1
        while start and end - start < max_rows:
            is_similar = lengths[start - 1] >= longest * (1 - MAX_PADDING)
            if not is_similar and end - start >= MIN_BUCKET_ROWS:
                break
            start -= 1
        bounds.append((start, end))
        end = start
    return bounds


def _softmax_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor,
    options: AttentionOptions,
) -> torch.Tensor:
    """Attention of [rows, heads, queries, dim] over [rows, kv heads, keys, dim].

    Torch's fused operator does it, except that it knows neither softcap nor sinks. `heads` are
    query heads in the model's order, or the kv heads with the query heads of each as queries.
    """
    groups = query.shape[1] // key.shape[1]
    if options.softcap is None and options.sinks is None:
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=options.scale, enable_gqa=groups > 1
        )
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(-2, -1) * options.scale
    if options.softcap is not None:
        scores = options.softcap * torch.tanh(scores / options.softcap)
    scores = scores.masked_fill(~mask, float("-inf"))
    weights = _softmax_beside_sinks(scores, options.sinks)
    return weights.to(value.dtype) @ value


def _softmax_beside_sinks(scores: torch.Tensor, sinks: torch.Tensor | None) -> torch.Tensor:
    """Weights of [rows, heads, queries, keys] in float32; they add up to less beside a sink."""
    if sinks is None:
        return scores.softmax(-1, dtype=torch.float32)
    rows, heads, queries, _ = scores.shape
    # A decode holds the query heads of a kv head as its queries; a prefill has a head each.
    shaped = sinks.view(1, heads, -1, 1).expand(rows, heads, queries, 1).to(scores.dtype)
    return torch.cat([scores, shaped], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]
