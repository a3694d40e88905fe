"""The whole engine on a GPU: exact in float32, and its throughput beside padded static batches.

``python bench/engine_gpu.py`` needs the engine's own dependencies only. Models have random weights
of real shapes, so their answers mean nothing and their speed is real. Lines are like those of the
workload `mixed`: about 190 tokens in and 97 out, each line as long as it likes.
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

import engine.llm_engine as engine_module
from engine.attention.reference import ReferenceAttention
from engine.config import EngineConfig
from engine.llm_engine import LLMEngine
from engine.sampling_params import SamplingParams

sys.path.append(str(Path(__file__).parents[1] / "tests" / "engine"))
from tiny_models import VOCAB_SIZE, save_model, save_tokenizer  # noqa: E402

DEVICE = "cuda"
SHAPES = {
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "1B": {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
Line = tuple[list[int], int]


def lines(count: int) -> list[Line]:
    """Prompts and output lengths, spread as real files spread."""
    draw = random.Random(0)
    made = []
    for _ in range(count):
        prompt_len, output_len = _length(draw, 180, 16, 1500), _length(draw, 96, 8, 512)
        made.append(([draw.randrange(VOCAB_SIZE - 1) for _ in range(prompt_len)], output_len))
    return made


def _length(draw: random.Random, mean: int, low: int, high: int) -> int:
    return max(low, min(high, int(draw.lognormvariate(0, 0.8) * mean / 1.377)))


def save_shape(folder: Path, shape: dict[str, int]) -> Path:
    config = AutoConfig.for_model(
        "llama", **shape, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


def run(
    config: EngineConfig, work: list[Line]
) -> tuple[float, LLMEngine, dict[str, tuple[int, ...]]]:
    """Seconds from the first line added to the last output, and the tokens."""
    engine = LLMEngine(config)
    _drain(engine, [([1, 2, 3], 4)] * 4)  # kernels are compiled by now
    torch.cuda.synchronize()
    start = time.perf_counter()
    found = _drain(engine, work)
    return time.perf_counter() - start, engine, found


def _drain(engine: LLMEngine, work: list[Line]) -> dict[str, tuple[int, ...]]:
    for index, (prompt, max_tokens) in enumerate(work):
        engine.add_request(
            str(index), prompt, SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        )
    found = {}
    while engine.has_unfinished():
        found.update((output.request_id, output.token_ids) for output in engine.step())
    return found


def check_exactness(folder: Path) -> None:
    """Greedy tokens in float32 on the device equal those of `generate` on the same device."""
    for family in ("llama", "qwen3", "gemma2", "mistral"):
        home = folder / family
        home.mkdir()
        save_model(home, family)
        model = AutoModelForCausalLM.from_pretrained(home, dtype=torch.float32).to(DEVICE).eval()
        work = [(prompt[:100], 12) for prompt, _ in lines(8)]
        config = EngineConfig(
            home,
            DEVICE,
            "float32",
            block_size=16,
            kv_memory_bytes=1 << 26,
            preempt_every=5,
            long_prefill_tokens=33,
        )
        _, engine, found = run(config, work)
        same = 0
        for index, (prompt, max_tokens) in enumerate(work):
            ids = torch.tensor([prompt], device=DEVICE)
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=max_tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
            )
            same += tuple(out[0, len(prompt) :].tolist()) == found[str(index)]
        print(
            f"{family}: {same} of {len(work)} equal to generate in float32 ({engine.description})",
            flush=True,
        )


def static_batches(folder: Path, work: list[Line], rows: int) -> float:
    """Seconds of transformers' generate over padded batches, each until its longest line ends."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(DEVICE).eval()

    def answer(part: list[Line]) -> None:
        longest = max(len(prompt) for prompt, _ in part)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p, _ in part], device=DEVICE)
        mask = torch.tensor(
            [[0] * (longest - len(p)) + [1] * len(p) for p, _ in part], device=DEVICE
        )
        most = max(n for _, n in part)
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=most,
            min_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
        )

    answer([([1, 2], 4)] * rows)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for first in range(0, len(work), rows):
        answer(work[first : first + rows])
    torch.cuda.synchronize()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=1024)
    parser.add_argument("--static", type=int, default=128, help="lines for the static batches")
    asked = parser.parse_args()
    transformers_logging.disable_progress_bar()
    work = lines(asked.lines)
    with tempfile.TemporaryDirectory() as name:
        check_exactness(Path(name))
        for title, shape in SHAPES.items():
            folder = Path(name) / title
            folder.mkdir()
            save_shape(folder, shape)
            _compare(title, folder, work, asked.static)


def _compare(title: str, folder: Path, work: list[Line], num_static: int) -> None:
    for rows in (64, 256, 512):
        _report(f"{title} {rows:3} rows", _config(folder, rows), work)
    part = work[:num_static]
    seconds = static_batches(folder, part, 64)
    rate = sum(n for _, n in part) / seconds
    print(f"{title} static batches of 64: {rate:,.0f} out tok/s", flush=True)
    chosen = engine_module.open_attention
    engine_module.open_attention = ReferenceAttention
    _report(f"{title} 256 rows, torch attention", _config(folder, 256), work[:256])
    engine_module.open_attention = chosen


def _config(folder: Path, rows: int) -> EngineConfig:
    return EngineConfig(
        folder,
        DEVICE,
        "bfloat16",
        kv_memory_bytes=20 << 30,
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        long_prefill_tokens=4096,
    )


def _report(title: str, config: EngineConfig, work: list[Line]) -> None:
    seconds, engine, _ = run(config, work)
    stats = engine.stats()
    rate = sum(n for _, n in work) / seconds
    print(
        f"{title}: {rate:,.0f} out tok/s, {stats.steps} steps of "
        f"{stats.busy_us / stats.steps / 1e3:.2f} ms ({engine.description})",
        flush=True,
    )
    del engine
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
