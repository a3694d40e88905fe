"""Attention in C++ against the reference, over several steps of a mixed batch."""

import random

import pytest
import torch
from kernel_levels import kernels_of, levels_to_test

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention
from engine.kernels.build import Level, usable_levels

CPU = torch.device("cpu")
LENGTHS = [1, 3, 9, 17, 130, 620]
CHUNKS = (5, 1, 7, 1, 1, 600, 1, 30)
LIMITS = {torch.float32: 2e-5, torch.bfloat16: 0.03}
NAN_BITS = 0x7FFF
"""Of a bfloat16; twice it is a float32's."""

pytestmark = pytest.mark.skipif(not usable_levels(), reason="no kernels for this processor")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", levels_to_test(), ids=lambda level: level.name)
@pytest.mark.parametrize(
    ("block_size", "heads", "shape", "options"),
    [
        (32, 9, LayerShape(3, 64, 64), AttentionOptions(0.125)),
        (5, 40, LayerShape(1, 36, 16), AttentionOptions(0.3)),
        (8, 6, LayerShape(2, 8, 5), AttentionOptions(0.3, 6, sinks=torch.linspace(-2, 3, 6))),
        (100, 4, LayerShape(4, 32, 80), AttentionOptions(0.3, 300, 2.0)),
    ],
)
def test_steps_of_a_mixed_batch_equal_the_reference(
    level: Level,
    dtype: torch.dtype,
    block_size: int,
    heads: int,
    shape: LayerShape,
    options: AttentionOptions,
) -> None:
    blocks = [-(-length // block_size) for length in LENGTHS]
    reference = ReferenceAttention([shape], block_size, CPU, torch.float32)
    backend = CpuAttention(kernels_of(level), [shape], block_size, dtype)
    for each in (reference, backend):
        each.allocate(sum(blocks))
    # Slots that were never written may hold anything.
    backend._pools[0].view("uint16")[:] = NAN_BITS
    order = random.Random(1).sample(range(sum(blocks)), sum(blocks))
    tables = [[order.pop() for _ in range(count)] for count in blocks]
    generator = torch.Generator().manual_seed(0)
    sizes = ((heads, shape.key_dim), (shape.num_kv_heads, shape.key_dim),
             (shape.num_kv_heads, shape.value_dim))  # fmt: skip
    data = [
        [torch.randn(length, *size, generator=generator).to(dtype) for size in sizes]
        for length in LENGTHS
    ]
    done = [0] * len(LENGTHS)
    for chunk in CHUNKS:
        parts = [
            (i, done[i], min(done[i] + chunk, n)) for i, n in enumerate(LENGTHS) if done[i] < n
        ]
        parts.sort(key=lambda part: (part[2] - part[1] != 1, part[1]))
        layout = BatchLayout(
            [end - start for _, start, end in parts],
            [end for _, _, end in parts],
            [tables[i] for i, _, _ in parts],
        )
        rows = [torch.cat([data[i][k][start:end] for i, start, end in parts]) for k in range(3)]
        for each in (reference, backend):
            each.begin(layout)
        out = backend.attend(0, *rows, options)
        expected = reference.attend(0, *[part.float() for part in rows], options)
        torch.testing.assert_close(out.float(), expected, rtol=0, atol=LIMITS[dtype])
        for i, _, end in parts:
            done[i] = end
    assert done == LENGTHS
