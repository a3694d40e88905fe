"""The reference attention against attention written out row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.reference import (
    MAX_BUCKET_KEYS,
    MIN_BUCKET_ROWS,
    ReferenceAttention,
    _bucket_bounds,
)

BLOCK = 4
HEADS, KV_HEADS, KEY_DIM, VALUE_DIM = 6, 2, 8, 5


def plain_attention(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, options: AttentionOptions
) -> torch.Tensor:
    """One query [heads, dim] over [keys, kv heads, dim]; only visible keys are given."""
    groups = HEADS // KV_HEADS
    out = torch.empty(HEADS, VALUE_DIM)
    first = max(0, len(keys) - options.window) if options.window else 0
    for head in range(HEADS):
        scores = keys[first:, head // groups] @ query[head] * options.scale
        if options.softcap:
            scores = options.softcap * torch.tanh(scores / options.softcap)
        out[head] = scores.softmax(0) @ values[first:, head // groups]
    return out


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_mixed_batches_over_several_steps_match_the_plain_one(
    window: int | None, softcap: float | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 3, 9, 17, 18, 30]
    num_blocks = 40
    backend = ReferenceAttention(
        [LayerShape(KV_HEADS, KEY_DIM, VALUE_DIM)], BLOCK, torch.device("cpu"), torch.float32
    )
    backend.allocate(num_blocks)
    backend._keys[0].fill_(float("nan"))  # unwritten slots may hold anything
    backend._values[0].fill_(float("nan"))
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = [[order.pop() for _ in range(-(-n // BLOCK))] for n in lengths]
    data = [
        tuple(
            torch.randn(n, heads, dim, generator=generator)
            for heads, dim in ((HEADS, KEY_DIM), (KV_HEADS, KEY_DIM), (KV_HEADS, VALUE_DIM))
        )
        for n in lengths
    ]
    options = AttentionOptions(0.3, window, softcap)
    done = [0] * len(lengths)
    for chunk in (5, 1, 7, 1, 1, 30):
        parts = [
            (i, done[i], min(done[i] + chunk, n)) for i, n in enumerate(lengths) if done[i] < n
        ]
        parts.sort(key=lambda part: (part[2] - part[1] != 1, part[1]))
        backend.begin(
            BatchLayout(
                [end - start for _, start, end in parts],
                [end for _, _, end in parts],
                [tables[i] for i, _, _ in parts],
            )
        )
        packed = [torch.cat([data[i][k][start:end] for i, start, end in parts]) for k in range(3)]
        out = backend.attend(0, *packed, options)
        expected = [
            plain_attention(data[i][0][t], data[i][1][: t + 1], data[i][2][: t + 1], options)
            for i, start, end in parts
            for t in range(start, end)
        ]
        torch.testing.assert_close(out, torch.stack(expected), rtol=1e-4, atol=1e-5)
        for i, _, end in parts:
            done[i] = end
    assert done == lengths


def test_block_bytes_count_keys_and_values_of_all_layers() -> None:
    shapes = [LayerShape(2, 8, 5), LayerShape(1, 4, 4)]
    backend = ReferenceAttention(shapes, BLOCK, torch.device("cpu"), torch.bfloat16)
    assert backend.block_bytes() == (2 * 13 + 8) * BLOCK * 2


@settings(max_examples=100, deadline=None)
@given(lengths=st.lists(st.integers(1, 20_000), max_size=60).map(sorted))
def test_buckets_cover_every_row_and_waste_little(lengths: list[int]) -> None:
    bounds = sorted(_bucket_bounds(lengths))
    assert [row for start, end in bounds for row in range(start, end)] == list(range(len(lengths)))
    for start, end in bounds:
        rows, longest = end - start, lengths[end - 1]
        assert rows == 1 or rows * longest <= MAX_BUCKET_KEYS
        assert rows <= MIN_BUCKET_ROWS or lengths[start] >= 0.75 * longest
