"""Attention in C++ against the reference, over several steps of a mixed batch."""

import random
from dataclasses import dataclass

import pytest
import torch
from kernel_levels import EMULATED_AMX, kernels_of, levels_to_test

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


@dataclass(slots=True)
class Sequence:
    """Its queries, keys and values of all tokens ([tokens, heads, dim] each), and its blocks."""

    rows: list[torch.Tensor]
    table: list[int]
    done: int = 0


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of attention as a model would describe it."""

    block_size: int
    heads: int
    shape: LayerShape
    options: AttentionOptions


def as_stored(rows: torch.Tensor, kv_cache: str) -> torch.Tensor:
    """Keys or values [tokens, heads, dim] as a pool gives them back."""
    if kv_cache == "auto":
        return rows
    highest = rows.float().abs().amax(-1, keepdim=True)
    inverse = torch.where(highest == 0, 0.0, torch.full_like(highest, 127) / highest)
    return ((rows.float() * inverse).round() * (highest / 127.0)).to(rows.dtype)


class Bench:
    """The reference and the backend side by side, each over a pool of its own."""

    def __init__(
        self,
        level: Level,
        dtype: torch.dtype,
        layer: Layer,
        num_blocks: int,
        kv_cache: str = "auto",
    ) -> None:
        self._layer, self._dtype, self._kv_cache = layer, dtype, kv_cache
        self._reference = ReferenceAttention([layer.shape], layer.block_size, CPU, torch.float32)
        self._backend = CpuAttention(
            kernels_of(level), [layer.shape], layer.block_size, dtype, kv_cache
        )
        for each in (self._reference, self._backend):
            each.allocate(num_blocks)
        # Slots that were never written may hold anything.
        self._backend._pools[0].view("uint16")[:] = NAN_BITS
        self._free = random.Random(1).sample(range(num_blocks), num_blocks)
        self._generator = torch.Generator().manual_seed(0)

    def sequence(self, length: int, parent: Sequence | None = None, shared: int = 0) -> Sequence:
        """A new one of `length` tokens, the first `shared` of which are the parent's, computed."""
        shape = self._layer.shape
        sizes = ((self._layer.heads, shape.key_dim), (shape.num_kv_heads, shape.key_dim),
                 (shape.num_kv_heads, shape.value_dim))  # fmt: skip
        rows = [
            torch.randn(length, *size, generator=self._generator).to(self._dtype) for size in sizes
        ]
        table: list[int] = []
        if parent is not None:
            assert shared % self._layer.block_size == 0
            rows = [
                torch.cat([theirs[:shared], own[shared:]])
                for theirs, own in zip(parent.rows, rows, strict=True)
            ]
            table = parent.table[: shared // self._layer.block_size]
        while len(table) * self._layer.block_size < length:
            table.append(self._free.pop())
        return Sequence(rows, table, shared)

    def step(self, work: list[tuple[Sequence, int]]) -> None:
        """Compute so many next tokens of each sequence, and compare."""
        parts = [(s, s.done, min(s.done + n, len(s.rows[0]))) for s, n in work]
        parts = [(s, start, end) for s, start, end in parts if start < end]
        parts.sort(key=lambda part: (part[2] - part[1] != 1, part[1]))
        layout = BatchLayout(
            [end - start for _, start, end in parts],
            [end for _, _, end in parts],
            [s.table for s, _, _ in parts],
        )
        rows = [torch.cat([s.rows[k][start:end] for s, start, end in parts]) for k in range(3)]
        for each in (self._reference, self._backend):
            each.begin(layout)
        out = self._backend.attend(0, *rows, self._layer.options)
        rows[1:] = [as_stored(part, self._kv_cache) for part in rows[1:]]
        expected = self._reference.attend(0, *[part.float() for part in rows], self._layer.options)
        torch.testing.assert_close(out.float(), expected, rtol=0, atol=LIMITS[self._dtype])
        for s, _, end in parts:
            s.done = end


@pytest.mark.parametrize("kv_cache", ["auto", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", levels_to_test(), ids=lambda level: level.name)
@pytest.mark.parametrize(
    "layer",
    [
        Layer(32, 9, LayerShape(3, 64, 64), AttentionOptions(0.125)),
        Layer(5, 40, LayerShape(1, 36, 16), AttentionOptions(0.3)),
        Layer(8, 6, LayerShape(2, 8, 5), AttentionOptions(0.3, 6, sinks=torch.linspace(-2, 3, 6))),
        Layer(100, 4, LayerShape(4, 32, 80), AttentionOptions(0.3, 300, 2.0)),
    ],
    ids=["smollm", "many-heads", "sinks", "capped"],
)
def test_steps_of_a_mixed_batch_equal_the_reference(
    level: Level, dtype: torch.dtype, kv_cache: str, layer: Layer
) -> None:
    blocks = sum(-(-length // layer.block_size) for length in LENGTHS)
    bench = Bench(level, dtype, layer, blocks, kv_cache)
    sequences = [bench.sequence(length) for length in LENGTHS]
    for chunk in CHUNKS:
        bench.step([(sequence, chunk) for sequence in sequences])
    assert [sequence.done for sequence in sequences] == LENGTHS


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", levels_to_test(), ids=lambda level: level.name)
@pytest.mark.parametrize("seed", range(8))
def test_sequences_that_share_blocks_equal_the_reference(
    level: Level, dtype: torch.dtype, seed: int
) -> None:
    """A trunk, branches of it, and twigs of one branch, which all add single tokens and chunks."""
    dice = random.Random(seed)
    few = level is EMULATED_AMX  # tiles written out in C++ are slow
    group, kv_heads = 1 + seed % 8, 1 if few else dice.choice([1, 2, 3])
    block_size = dice.choice([4, 16, 32, 64, 96, 100])
    shape = LayerShape(kv_heads, dice.choice([8, 32, 36, 64, 96]), dice.choice([5, 16, 48, 64, 80]))
    heads = group * kv_heads
    options = AttentionOptions(
        shape.key_dim**-0.5,
        dice.choice([None, None, 90, 500]),
        dice.choice([None, None, 2.0]),
        dice.choice([None, torch.linspace(-2, 3, heads)]),
    )
    layer = Layer(block_size, heads, shape, options)
    # Half of the seeds keep keys and values in int8.
    bench = Bench(level, dtype, layer, 3_000, "int8" if seed % 2 else "auto")
    trunk = bench.sequence(700)
    bench.step([(trunk, 699)])
    first, second = (
        dice.randint(a, b) // block_size * block_size for a, b in [(200, 400), (401, 600)]
    )
    branches = [
        bench.sequence(second + 100, trunk, first) for _ in range(3 if few else dice.randint(3, 12))
    ]
    bench.step([(branch, second + 1 - first) for branch in branches])
    twigs = [
        bench.sequence(second + 20, branches[0], second)
        for _ in range(4 if few else dice.randint(0, 40))
    ]
    for _ in range(3):
        # A token of each, and behind some of them guesses.
        all_of_them = [trunk, *branches, *twigs, bench.sequence(40)]
        work = [(each, dice.choice([1, 1, 2, 4, 8])) for each in all_of_them]
        work[dice.randrange(len(work))] = (bench.sequence(90), dice.randint(2, 90))
        dice.shuffle(work)
        bench.step(work)


@pytest.mark.parametrize("kv_cache", ["auto", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("level", levels_to_test(), ids=lambda level: level.name)
@pytest.mark.parametrize(
    "layer",
    [
        Layer(32, 9, LayerShape(3, 64, 64), AttentionOptions(0.125)),
        Layer(32, 12, LayerShape(2, 64, 80), AttentionOptions(0.125, 40, 2.0)),
        Layer(5, 8, LayerShape(1, 36, 16), AttentionOptions(0.3)),
        Layer(64, 2, LayerShape(2, 32, 24), AttentionOptions(0.3, 530)),
    ],
    ids=["smollm", "capped", "many-heads", "window"],
)
def test_guesses_change_no_bit_of_what_follows(
    level: Level, dtype: torch.dtype, kv_cache: str, layer: Layer
) -> None:
    """Tokens one by one, and with wrong ones behind them that are taken back."""
    dice = random.Random(3)
    start, end = 500, 532  # past where keys are cut into parts
    generator = torch.Generator().manual_seed(0)
    sizes = ((layer.heads, layer.shape.key_dim), (layer.shape.num_kv_heads, layer.shape.key_dim),
             (layer.shape.num_kv_heads, layer.shape.value_dim))  # fmt: skip
    rows = [torch.randn(end, *size, generator=generator).to(dtype) for size in sizes]
    blocks = -(-(end + 8) // layer.block_size)
    table = random.Random(1).sample(range(blocks), blocks)
    alone, guessing = (
        CpuAttention(kernels_of(level), [layer.shape], layer.block_size, dtype, kv_cache)
        for _ in range(2)
    )

    def attend(backend: CpuAttention, done: int, parts: list[torch.Tensor]) -> torch.Tensor:
        backend.begin(BatchLayout([len(parts[0])], [done + len(parts[0])], [table]))
        return backend.attend(0, *parts, layer.options)

    for backend in (alone, guessing):
        backend.allocate(blocks)
        backend._pools[0].view("uint16")[:] = NAN_BITS
        attend(backend, 0, [part[:start] for part in rows])
    expected = torch.cat(
        [
            attend(alone, done, [part[done : done + 1] for part in rows])
            for done in range(start, end)
        ]
    )
    done = start
    while done < end:
        right, wrong = min(dice.randint(1, 6), end - done), dice.randint(0, 2)
        parts = [part[done : done + right] for part in rows]
        guessed = [torch.randn(wrong, *size, generator=generator).to(dtype) for size in sizes]
        if dice.random() < 0.3:  # the step is wasted; it must be harmless all the same
            guessed[2].fill_(torch.nan)
            attend(guessing, done, [torch.cat(pair) for pair in zip(parts, guessed, strict=True)])
            guessed = [part[:0] for part in guessed]
        both = [torch.cat(pair) for pair in zip(parts, guessed, strict=True)]
        out = attend(guessing, done, both)[:right]
        torch.testing.assert_close(
            out, expected[done - start : done - start + right], rtol=0, atol=0
        )
        done += right
