"""The matrix products of a CPU step, beside torch's packed ones and what the machine gives at most.

``python bench/products.py --model FOLDER`` runs steps of 1 to 512 rows with one token each (so that
attention is next to nothing) and prints TFLOP/s of all layers' products and of the head, from the
engine's own step profile; of bfloat16 also the same by oneDNN over weights that torch packed once.
"""

import argparse
import ctypes
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from engine.attention import AttentionBackend, open_attention
from engine.attention.backend import BatchLayout
from engine.config import EngineConfig
from engine.kernels.build import OPTIONS, SOURCES, find_compiler, usable_levels
from engine.kernels.memory import zeroed
from engine.kernels.threads import usable_threads
from engine.models import FusedModel, Wanted, load_model
from engine.quantisation import PLAIN, WEIGHTS, Quantisation

ROWS = (1, 4, 8, 16, 32, 64, 128, 256, 512)
BLOCK = 16
READ_BYTES = 1 << 30
READ_TOKENS = 64


def ceilings(threads: int) -> None:
    """Print them; the processor's tiles only where there are some."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ceilings.so"
        source = Path(__file__).with_name("ceilings.cpp")
        options = (*OPTIONS, *usable_levels()[0].options, f"-I{SOURCES}")
        subprocess.run([find_compiler(), *options, "-o", str(path), str(source)], check=True)
        library = ctypes.CDLL(str(path))
    library.tile_rate.restype = library.read_rate.restype = ctypes.c_double
    memory = zeroed(READ_BYTES)
    memory[:] = 1
    for count in sorted({1, threads}):
        read = library.read_rate(
            ctypes.c_void_p(memory.ctypes.data), ctypes.c_int64(READ_BYTES // 8), count
        )
        print(
            f"{count} threads: tiles {library.tile_rate(count):.2f} TFLOP/s, read {read:.1f} GB/s"
        )


def fastest(rounds: int, seconds: list[tuple[float, float]]) -> tuple[float, float]:
    """The shortest products and the shortest head of some steps."""
    assert len(seconds) == rounds
    return min(products for products, _ in seconds), min(head for _, head in seconds)


@torch.inference_mode()
def own(
    model: FusedModel, attention: AttentionBackend, rows: int, rounds: int
) -> tuple[float, float]:
    """Seconds of the products and of the head of a step."""
    attention.begin(BatchLayout([1] * rows, [1] * rows, [[row] for row in range(rows)]))
    ids, positions = torch.arange(rows), torch.zeros(rows, dtype=torch.long)
    wanted = Wanted(0, model.vocab_size)
    seen = []
    for _ in range(rounds):
        before = model.seconds()
        model.likeliest_and_logits(ids, positions, torch.arange(rows), attention, wanted)
        after = model.seconds()
        seen.append(tuple(after[k] - before[k] for k in ("matrix products", "head")))
    return fastest(rounds, seen)


@torch.inference_mode()
def packed(shapes: list[tuple[int, int]], layers: int, rows: int, rounds: int) -> float:
    """Seconds of the layers' products by oneDNN, each weight packed for this number of rows."""
    weights = [
        [torch.randn(shape, dtype=torch.bfloat16) for shape in shapes] for _ in range(layers)
    ]
    pack = torch.ops.mkldnn._reorder_linear_weight
    multiply = torch.ops.mkldnn._linear_pointwise
    prepared = [[pack(weight.to_mkldnn(), rows) for weight in layer] for layer in weights]
    inputs = [torch.randn(rows, k, dtype=torch.bfloat16) for _, k in shapes]
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for layer in prepared:
            for x, weight in zip(inputs, layer, strict=True):
                multiply(x, weight, None, "none", [], "")
        best = min(best, time.perf_counter() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--weights", default=PLAIN, choices=WEIGHTS)
    parser.add_argument("--no-torch", action="store_true", help="leave oneDNN out")
    options = parser.parse_args()
    threads = usable_threads()
    torch.set_num_threads(threads)
    ceilings(threads)
    rounded = Quantisation(weights=options.weights)
    config = EngineConfig(model=options.model, dtype=options.dtype, quantisation=rounded)
    model = load_model(config, range(READ_TOKENS))  # speed doesn't depend on what is rounded
    if not isinstance(model, FusedModel):
        raise SystemExit(f"{options.model} runs without fused layers here")
    attention = open_attention(model.shapes, BLOCK, model.device, model.dtype)
    attention.allocate(max(options.rows))
    stack, layer = model._stack, model._stack.layers[0]
    shapes = [(m.outputs, m.inputs) for m in (layer.qkv, layer.out, layer.gate_up, layer.down)]
    layers = stack.num_layers
    work = 2 * layers * sum(n * k for n, k in shapes)
    head = 2 * stack.head.outputs * stack.head.inputs
    for rows in options.rows:
        spent, head_spent = own(model, attention, rows, options.rounds)
        line = f"{rows:4} rows: {spent * 1e3:7.2f} ms, {rows * work / spent / 1e12:5.2f} TFLOP/s"
        line += f"; head {head_spent * 1e3:6.2f} ms, {rows * head / head_spent / 1e12:5.2f}"
        if not options.no_torch and model.dtype is torch.bfloat16:
            theirs = packed(shapes, layers, rows, options.rounds)
            line += f"; oneDNN {theirs * 1e3:7.2f} ms, {rows * work / theirs / 1e12:5.2f} TFLOP/s"
        print(line, flush=True)


if __name__ == "__main__":
    main()
