"""The attention kernels on a GPU: right, and how near to the machine's own ceilings.

``python bench/attention_gpu.py`` compares every head size and group with the torch oracle in
bfloat16, then prints decode in TB/s of keys and values read and prefill in TFLOP/s. ``--sweep``
also tries other tile sizes than the table's.
"""

import argparse
import itertools
from dataclasses import replace
from types import ModuleType

import torch
from triton.testing import do_bench

from engine.attention import triton as backend
from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.reference import ReferenceAttention
from engine.attention.triton import Launch, TritonAttention

DEVICE = torch.device("cuda")
BLOCK = 32


def layout_of(query_lens: list[int], context_lens: list[int]) -> tuple[BatchLayout, int]:
    """Blocks in a random order, as a pool has them after a while."""
    counts = [-(-n // BLOCK) for n in context_lens]
    order = torch.randperm(sum(counts)).tolist()
    tables = [[order.pop() for _ in range(count)] for count in counts]
    return BatchLayout(query_lens, context_lens, tables), sum(counts)


def batch(shape: LayerShape, heads: int, tokens: int, dtype: torch.dtype) -> list[torch.Tensor]:
    sizes = (
        (heads, shape.key_dim),
        (shape.num_kv_heads, shape.key_dim),
        (shape.num_kv_heads, shape.value_dim),
    )
    return [torch.randn(tokens, n, dim, device=DEVICE, dtype=dtype) for n, dim in sizes]


def check(head_size: int, group: int, options: AttentionOptions, dtype: torch.dtype) -> float:
    """Relative error against the oracle in float32, over a prefill and then a mixed step."""
    shape = LayerShape(4, head_size, head_size)
    kernels = TritonAttention([shape], BLOCK, DEVICE, dtype)
    oracle = ReferenceAttention([shape], BLOCK, DEVICE, torch.float32)
    final = [2000, 70, 33, 900]
    layout, num_blocks = layout_of(final, final)
    worst = 0.0
    for attention in (kernels, oracle):
        attention.allocate(num_blocks)
        for pool in attention._keys + attention._values:
            pool.fill_(float("nan"))
    # Rows by query lengths, those of one query first and by ascending context.
    prefill = {0: (1990, 1990), 1: (69, 69), 2: (32, 32), 3: (700, 700)}
    mixed = {2: (1, 33), 1: (1, 70), 0: (10, 2000), 3: (200, 900)}
    for rows in (prefill, mixed):
        query_lens = [n for n, _ in rows.values()]
        tables = [layout.block_tables[row] for row in rows]
        step = BatchLayout(query_lens, [n for _, n in rows.values()], tables)
        parts = batch(shape, 4 * group, sum(query_lens), dtype)
        kernels.begin(step)
        oracle.begin(step)
        found = kernels.attend(0, *parts, options).float()
        expected = oracle.attend(0, *(part.float() for part in parts), options)
        worst = max(worst, ((found - expected).norm() / expected.norm()).item())
    return worst


def measure(
    shape: LayerShape, heads: int, query_len: int, context_len: int, rows: int
) -> tuple[float, float]:
    """Seconds of one attention, and the work: bytes of KV for a decode, FLOP for a prefill."""
    kernels = TritonAttention([shape], BLOCK, DEVICE, torch.bfloat16)
    layout, num_blocks = layout_of([query_len] * rows, [context_len] * rows)
    kernels.allocate(num_blocks)
    kernels.begin(layout)
    parts = batch(shape, heads, query_len * rows, torch.bfloat16)
    options = AttentionOptions(shape.key_dim**-0.5)
    seconds = do_bench(lambda: kernels.attend(0, *parts, options), return_mode="median") / 1e3
    width = shape.key_dim + shape.value_dim
    if query_len == 1:
        return seconds, rows * context_len * shape.num_kv_heads * width * 2.0
    pairs = query_len * (context_len - query_len) + query_len * (query_len + 1) / 2
    return seconds, rows * heads * pairs * width * 2.0


SHAPES = {
    "head 64 group 3": (LayerShape(3, 64, 64), 9),
    "head 128 group 4": (LayerShape(8, 128, 128), 32),
}
DECODES = [(1, 1024, 16), (1, 1024, 64), (1, 1024, 256), (1, 4096, 128), (1, 32768, 8)]
PREFILLS = [(2048, 2048, 4), (512, 8192, 8)]


def report() -> None:
    for name, (shape, heads) in SHAPES.items():
        for query_len, context_len, rows in DECODES + PREFILLS:
            seconds, work = measure(shape, heads, query_len, context_len, rows)
            unit = "TB/s" if query_len == 1 else "TFLOP/s"
            print(
                f"{name}: {rows:3} x {query_len:4} queries on {context_len:5} keys "
                f"{seconds * 1e6:9.1f} us {work / seconds / 1e12:7.2f} {unit}",
                flush=True,
            )


def sweep(module: ModuleType) -> None:
    """Other launches than the table's, best first."""
    chosen = module.choose_launch
    for (name, (shape, heads)), case in itertools.product(
        SHAPES.items(), [(1, 1024, 256), (2048, 2048, 4)]
    ):
        rows = (16,) if case[0] == 1 else (64, 128)
        warps = (4,) if case[0] == 1 else (4, 8)
        found = []
        for sizes in itertools.product(rows, (32, 64, 128), warps, (2, 3)):
            launch = Launch(*sizes)
            module.choose_launch = lambda *_, launch=launch: replace(launch)
            try:
                seconds, work = measure(shape, heads, *case)
            except Exception as error:  # a launch that doesn't fit is one of the answers
                print(name, case, launch, type(error).__name__)
                continue
            found.append((work / seconds / 1e12, launch))
        for rate, launch in sorted(found, key=lambda pair: -pair[0])[:6]:
            print(name, case, f"{rate:7.2f}", launch, flush=True)
    module.choose_launch = chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--groups", type=int, nargs="+", default=list(range(1, 9)))
    asked = parser.parse_args()
    torch.manual_seed(0)
    worst = 0.0
    for head_size, group in itertools.product((64, 96, 128, 256), asked.groups):
        for options in (AttentionOptions(0.1), AttentionOptions(0.1, window=50, softcap=20.0)):
            worst = max(worst, check(head_size, group, options, torch.bfloat16))
    exact = check(64, 3, AttentionOptions(0.1), torch.float32)
    print(
        f"{torch.cuda.get_device_name()}: worst relative error {worst:.1e} bf16, {exact:.1e} fp32"
    )
    report()
    if asked.sweep:
        sweep(backend)


if __name__ == "__main__":
    main()
