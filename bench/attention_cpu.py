"""The C++ attention alone, at the size of a small model: ``python bench/attention_cpu.py``.

Thirty layers, each with a pool of its own, 9 heads over 3 of keys and values, 64 wide, in bfloat16;
blocks lie in random order. Beside each case what it reads of the pools a second, and above them
what memory gives. The best of five runs, for others may be at work on the machine.
"""

import argparse
import ctypes
import random
import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.cpu import CpuAttention, num_threads
from engine.kernels import load_kernels
from engine.kernels.library import AttentionRows

LAYERS, HEADS, KV_HEADS, DIM, BLOCK = 30, 9, 3, 64, 32
OPTIONS = AttentionOptions(DIM**-0.5)
SEED = 1


@dataclass(frozen=True, slots=True)
class Case:
    """Sequences that have computed `earlier` tokens; the first `shared` are everybody's."""

    name: str
    sequences: int
    queries: int
    earlier: int
    shared: int = 0

    @property
    def context(self) -> int:
        return self.earlier + self.queries

    @property
    def tokens(self) -> int:
        return self.sequences * self.queries

    def tables(self) -> list[list[int]]:
        """Blocks in random order, the shared ones first in each table."""
        shared = self.shared // BLOCK
        own = -(-self.context // BLOCK) - shared
        blocks = list(range(shared + self.sequences * own))
        random.Random(SEED).shuffle(blocks)
        head, rest = blocks[:shared], blocks[shared:]
        return [head + rest[i * own : (i + 1) * own] for i in range(self.sequences)]

    def bytes_of_a_step(self, block_bytes: int) -> int:
        """What all layers hold of the contexts, each block once."""
        keys = self.shared + self.sequences * (self.context - self.shared)
        return keys * block_bytes // BLOCK


CASES = (
    Case("decode 256 x 260", 256, 1, 259),
    Case("decode 64 x 300", 64, 1, 299),
    Case("decode 32 x 1,000", 32, 1, 999),
    Case("decode 1 x 8,000", 1, 1, 7_999),
    Case("decode 256 x 640, 512 shared", 256, 1, 639, shared=512),
    Case("decode 4 x 640, 512 shared", 4, 1, 639, shared=512),
    Case("prefill 2 x 256", 2, 256, 0),
    Case("prefill 1 x 512", 1, 512, 0),
    Case("prefill 512 behind 4,096", 1, 512, 4_096),
)


class Step:
    """One case, ready to run."""

    def __init__(self, case: Case) -> None:
        self.case = case
        shape = LayerShape(KV_HEADS, DIM, DIM)
        self.backend = CpuAttention(load_kernels(), [shape] * LAYERS, BLOCK, torch.bfloat16)
        tables = case.tables()
        self.backend.allocate(1 + max(max(table) for table in tables))
        for pool in self.backend._pools:
            # Small numbers: what is never written is read too, and NaN would be slow.
            pool.view(np.uint16)[:] = 0x3C00
        layout = BatchLayout(
            [case.queries] * case.sequences, [case.context] * case.sequences, tables
        )
        self.backend.begin(layout)
        width = (HEADS + 2 * KV_HEADS) * DIM
        self._rows = torch.randn(case.tokens, width).bfloat16()
        self._out = torch.empty(case.tokens, HEADS * DIM, dtype=torch.bfloat16)
        self._cosine = torch.full((case.tokens, DIM // 2), 0.6)
        self._sine = torch.full((case.tokens, DIM // 2), 0.8)
        query = self._rows.data_ptr()
        key = query + 2 * HEADS * DIM
        value = key + 2 * KV_HEADS * DIM
        strides = (width, width, width, HEADS * DIM)
        angles = (self._cosine.data_ptr(), self._sine.data_ptr(), DIM)
        self._arguments = AttentionRows(query, key, value, self._out.data_ptr(), *strides, *angles)
        self._shape = self.backend.layer_shape(0, HEADS, OPTIONS)

    def run(self) -> float:
        """Seconds of all layers."""
        attend, threads = self.backend._functions.tm_attention, num_threads()
        started = time.perf_counter()
        for layer in range(LAYERS):
            attend(
                self.backend.plan,
                ctypes.byref(self._shape),
                ctypes.byref(self._arguments),
                self.backend.pool_address(layer),
                threads,
            )
        return time.perf_counter() - started


def read_ceiling() -> float:
    """Bytes a second that all threads read from memory in order."""
    memory = torch.ones(1 << 28)
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        memory.sum()
        seconds.append(time.perf_counter() - started)
    return memory.numel() * 4 / statistics.median(seconds)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name begins so")
    only = parser.parse_args().only
    print(f"{load_kernels().level.name}, {num_threads()} threads")
    print(f"{'read in order':30} {read_ceiling() / 1e9:28.1f} GB/s")
    for case in CASES:
        if case.name.startswith(only):
            step = Step(case)
            runs = [step.run() for _ in range(6)][1:]
            best = min(runs)
            rate = case.bytes_of_a_step(step.backend.block_bytes()) / best / 1e9
            print(f"{case.name:30} {best * 1e3:10.1f} ms a step {rate:8.1f} GB/s")


if __name__ == "__main__":
    main()
