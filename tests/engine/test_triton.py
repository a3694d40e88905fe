"""The Triton kernels against the torch oracle in the interpreter, and compiled ahead for Hopper."""

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from engine.attention import triton as backend
from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.reference import ReferenceAttention
from engine.attention.triton import TritonAttention

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 4e-3}
NUM_BLOCKS = 48


@dataclass
class Sequence:
    """A sequence that is computed in chunks."""

    length: int
    blocks: list[int]
    done: int = 0


class Pair:
    """The oracle and the kernels, fed the same random steps; unwritten slots hold NaN."""

    def __init__(self, shape: LayerShape, heads: int, block: int, dtype: torch.dtype) -> None:
        self.shape, self.heads, self.dtype = shape, heads, dtype
        self.oracle = ReferenceAttention([shape], block, CPU, torch.float32)
        self.kernels = TritonAttention([shape], block, CPU, dtype)
        for attention in (self.oracle, self.kernels):
            attention.allocate(NUM_BLOCKS)
            for pool in attention._keys + attention._values:
                pool.fill_(float("nan"))

    def step(self, parts: list[tuple[Sequence, int]], options: AttentionOptions) -> None:
        """Compute so many tokens of each sequence on both sides, and compare."""
        parts.sort(key=lambda part: (part[1] != 1, part[0].done))
        layout = BatchLayout(
            [n for _, n in parts], [s.done + n for s, n in parts], [s.blocks for s, _ in parts]
        )
        num_tokens = sum(layout.query_lens)
        query, key, value = (
            torch.randn(heads, num_tokens, dim).to(self.dtype).transpose(0, 1)
            for heads, dim in (
                (self.heads, self.shape.key_dim),
                (self.shape.num_kv_heads, self.shape.key_dim),
                (self.shape.num_kv_heads, self.shape.value_dim),
            )
        )
        self.oracle.begin(layout)
        self.kernels.begin(layout)
        expected = self.oracle.attend(0, query.float(), key.float(), value.float(), options)
        found = self.kernels.attend(0, query, key, value, options)
        assert found.dtype == self.dtype
        limit = TOLERANCE[self.dtype]
        torch.testing.assert_close(found.float(), expected, rtol=limit, atol=limit)
        for sequence, num_queries in parts:
            sequence.done += num_queries


def make_sequences(lengths: list[int], block: int, generator: random.Random) -> list[Sequence]:
    free = list(range(NUM_BLOCKS))
    generator.shuffle(free)
    return [Sequence(n, [free.pop() for _ in range(-(-n // block))]) for n in lengths]


@pytest.mark.parametrize("head_size", [64, 96, 128, 256])
@pytest.mark.parametrize("group", range(1, 9))
def test_every_head_size_and_group_matches_the_oracle(head_size: int, group: int) -> None:
    torch.manual_seed(group)
    dtype = torch.float16 if group % 2 else torch.float32
    pair = Pair(LayerShape(1, head_size, head_size), group, 16, dtype)
    long, short, late = make_sequences([25, 9, 3], 16, random.Random(head_size))
    options = AttentionOptions(head_size**-0.5)
    pair.step([(long, 24), (short, 8)], options)
    pair.step([(long, 1), (short, 1), (late, 3)], options)


@pytest.mark.parametrize(
    ("units", "softcap", "window", "block"),
    [
        (1, None, None, 32),
        (1, None, 7, 4),
        (1, 2.0, 1, 32),
        (64, None, None, 4),
        (64, 2.0, 7, 32),
    ],
)
def test_random_steps_match_the_oracle(
    monkeypatch: pytest.MonkeyPatch,
    units: int,
    softcap: float | None,
    window: int | None,
    block: int,
) -> None:
    """With many units the keys are split over programs, of which some see no key at all."""
    monkeypatch.setattr(backend, "KEYS_PER_SPLIT", 8)
    monkeypatch.setattr(backend, "_num_units", lambda device: units)
    generator = random.Random(f"{block} {window} {softcap} {units}")
    torch.manual_seed(generator.randrange(1000))
    pair = Pair(LayerShape(2, 24, 5), 6, block, torch.float32)
    options = AttentionOptions(0.3, window, softcap)
    open_ones = make_sequences([1, 4, 33], block, generator)
    while open_ones:
        parts = [(s, min(s.length - s.done, generator.choice([1, 6, 30]))) for s in open_ones]
        pair.step(parts, options)
        open_ones = [s for s in open_ones if s.done < s.length]


def test_prefills_alone_and_long_contexts_over_several_key_tiles_match_the_oracle() -> None:
    torch.manual_seed(3)
    pair = Pair(LayerShape(1, 16, 16), 2, 16, torch.float32)
    (sequence,) = make_sequences([300], 16, random.Random(3))
    options = AttentionOptions(0.25, softcap=5.0)
    for chunk in (150, 149, 1):
        pair.step([(sequence, chunk)], options)


@pytest.mark.parametrize("units", [1, 64])
def test_a_sink_takes_its_share_once_however_the_keys_are_split(
    monkeypatch: pytest.MonkeyPatch, units: int
) -> None:
    monkeypatch.setattr(backend, "KEYS_PER_SPLIT", 8)
    monkeypatch.setattr(backend, "_num_units", lambda device: units)
    torch.manual_seed(5)
    pair = Pair(LayerShape(2, 16, 16), 6, 16, torch.float32)
    long, short = make_sequences([20, 3], 16, random.Random(5))
    options = AttentionOptions(0.25, window=9, sinks=torch.randn(6))
    pair.step([(long, 19), (short, 2)], options)
    pair.step([(long, 1), (short, 1)], options)


def test_a_large_score_is_capped_without_overflow() -> None:
    torch.manual_seed(4)
    pair = Pair(LayerShape(1, 16, 16), 1, 16, torch.float32)
    (sequence,) = make_sequences([8], 16, random.Random(4))
    pair.step([(sequence, 8)], AttentionOptions(scale=1e4, softcap=3.0))


def test_block_bytes_count_keys_and_values_of_all_layers() -> None:
    shapes = [LayerShape(2, 8, 5), LayerShape(1, 4, 4)]
    attention = TritonAttention(shapes, 4, CPU, torch.bfloat16)
    assert attention.block_bytes() == (2 * 13 + 8) * 4 * 2


def test_the_kernels_compile_for_hopper_within_its_shared_memory_and_without_spills() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "scripts/compile_kernels.py", "--quick"],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("bytes shared") == 10
