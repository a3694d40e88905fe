"""Paging against padding: ``python bench/padding.py --model FOLDER [--longest 16000]``.

One batch of 16 prompts, spread evenly by ratio from 200 tokens to the longest, each with 32 tokens
out: our engine, and transformers' generate over the padded batch, each in a process of its own.
Prints seconds, and peak memory above what the process held when its model was loaded. A process may
take what memory is available when it starts; one that needs more is told of as such.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import psutil

SIDES = ("paged", "padded")
PROMPTS = 16
SHORTEST = 200
OUTPUT = 32
_SEED = 7
_SAMPLE_SECONDS = 0.05
_NO_MEMORY = "NO-MEMORY"


def rows(longest: int, vocab_size: int) -> list[dict]:
    draw = random.Random(_SEED)
    ratio = (longest / SHORTEST) ** (1 / (PROMPTS - 1))
    lengths = [round(SHORTEST * ratio**number) for number in range(PROMPTS)]
    return [
        {"prompt": draw.choices(range(1000, vocab_size - 1000), k=length), "max_tokens": OUTPUT}
        for length in lengths
    ]


def paged(model: Path, dtype: str, work: list[dict]) -> float:
    from engine.config import EngineConfig
    from engine.llm_engine import LLMEngine
    from engine.sampling_params import SamplingParams

    engine = LLMEngine(EngineConfig(model=model, max_num_seqs=PROMPTS, dtype=dtype))
    _ready()
    started = time.perf_counter()
    for number, row in enumerate(work):
        engine.add_request(str(number), row["prompt"], SamplingParams(OUTPUT, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
    return time.perf_counter() - started


def padded(model: Path, dtype: str, work: list[dict]) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    longest = max(len(row["prompt"]) for row in work)
    ids = torch.zeros((PROMPTS, longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(work):
        ids[number, longest - len(row["prompt"]) :] = torch.tensor(row["prompt"])
        mask[number, longest - len(row["prompt"]) :] = 1
    _ready()
    started = time.perf_counter()
    with torch.inference_mode():
        network.generate(
            ids,
            attention_mask=mask,
            do_sample=False,
            max_new_tokens=OUTPUT,
            min_new_tokens=OUTPUT,
            pad_token_id=0,
        )
    return time.perf_counter() - started


def _ready() -> None:
    print("READY", flush=True)


def limit_memory() -> None:
    """Ask for no more than there is: a refused allocation, not a killed neighbour."""
    available = psutil.virtual_memory().available
    resource.setrlimit(resource.RLIMIT_DATA, (available, available))


def measure(side: str, options: list[str]) -> tuple[float, float] | None:
    """Seconds, and the peak above the loaded process in MiB; None if its memory ran out."""
    command = [sys.executable, __file__, *options, "--side", side]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=limit_memory)
    assert process.stdout is not None
    assert process.stdout.readline() == "READY\n", f"{side} did not load"
    seen = psutil.Process(process.pid)
    before = peak = seen.memory_info().rss
    while process.poll() is None:
        try:
            peak = max(peak, seen.memory_info().rss)
        except psutil.NoSuchProcess:
            break
        time.sleep(_SAMPLE_SECONDS)
    printed = process.stdout.read().split()
    if process.wait() != 0:
        raise SystemExit(f"{side} ended with {process.returncode}")
    return None if printed == [_NO_MEMORY] else (float(printed[0]), (peak - before) / 2**20)


def run_side(side: str, model: Path, dtype: str, work: list[dict]) -> None:
    """In a process of its own: print the seconds, or that there was not memory enough."""
    try:
        print({"paged": paged, "padded": padded}[side](model, dtype, work))
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        print(error, file=sys.stderr)
        print(_NO_MEMORY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--longest", type=int, default=16_000)
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    vocab_size = json.loads((asked.model / "config.json").read_text())["vocab_size"]
    if asked.side:
        run_side(asked.side, asked.model, asked.dtype, rows(asked.longest, vocab_size))
        return
    options = ["--model", str(asked.model), "--longest", str(asked.longest)]
    found = {}
    for side in SIDES:
        found[side] = measure(side, [*options, "--dtype", asked.dtype])
        print(f"{side}: {told(found[side])}", flush=True)
    if found["paged"] and found["padded"]:
        for name, number in (("time", 0), ("memory", 1)):
            print(f"{name}: {found['paged'][number] / found['padded'][number] - 1:+.0%}")


def told(seen: tuple[float, float] | None) -> str:
    return f"{seen[0]:.1f} s, {seen[1]:.0f} MiB" if seen else "needs more memory than there is"


if __name__ == "__main__":
    main()
