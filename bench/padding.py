"""Paging against padding: ``python bench/padding.py --model FOLDER [--longest 16000]``.

One batch of 16 prompts, spread evenly by ratio from 200 tokens to the longest, each with 32 tokens
out: our engine, and transformers' generate over the padded batch, each in a process of its own.
Prints seconds, and peak memory above what the process held when its model was loaded.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

SIDES = ("paged", "padded")
PROMPTS = 16
SHORTEST = 200
OUTPUT = 32
_SEED = 7
_SAMPLE_SECONDS = 0.05


def rows(longest: int, vocab_size: int) -> list[dict]:
    draw = random.Random(_SEED)
    ratio = (longest / SHORTEST) ** (1 / (PROMPTS - 1))
    lengths = [round(SHORTEST * ratio**number) for number in range(PROMPTS)]
    return [
        {"prompt": draw.choices(range(1000, vocab_size - 1000), k=length), "max_tokens": OUTPUT}
        for length in lengths
    ]


def paged(model: Path, work: list[dict]) -> float:
    from engine.config import EngineConfig
    from engine.llm_engine import LLMEngine
    from engine.sampling_params import SamplingParams

    engine = LLMEngine(EngineConfig(model=model, max_num_seqs=PROMPTS, dtype="bfloat16"))
    _ready()
    started = time.perf_counter()
    for number, row in enumerate(work):
        engine.add_request(str(number), row["prompt"], SamplingParams(OUTPUT, ignore_eos=True))
    while engine.has_unfinished():
        engine.step()
    return time.perf_counter() - started


def padded(model: Path, work: list[dict]) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
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


def measure(side: str, model: Path, work: Path) -> tuple[float, float]:
    """Seconds, and the peak above the loaded process in MiB."""
    command = [sys.executable, __file__, "--model", str(model), "--side", side, "--work", str(work)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
    printed = process.stdout.read()
    if process.wait() != 0:
        raise SystemExit(f"{side} ended with {process.returncode}")
    return float(printed), (peak - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--longest", type=int, default=16_000)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        side = {"paged": paged, "padded": padded}[asked.side]
        print(side(asked.model, json.loads(asked.work.read_text())))
        return
    vocab_size = json.loads((asked.model / "config.json").read_text())["vocab_size"]
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        path = Path(folder) / "work.json"
        path.write_text(json.dumps(rows(asked.longest, vocab_size)))
        found = {}
        for side in SIDES:
            found[side] = measure(side, asked.model, path)
            print(f"{side}: {found[side][0]:.1f} s, {found[side][1]:.0f} MiB", flush=True)
    for name, number in (("time", 0), ("memory", 1)):
        print(f"{name}: {found['paged'][number] / found['padded'][number] - 1:+.0%}")


if __name__ == "__main__":
    main()
