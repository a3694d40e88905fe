"""What an option of the engine costs in quality: ``make bench-quality MODEL_FOLDER=…``.

``python bench/quality.py --model FOLDER --data FOLDER --out FOLDER [--only bf16 …]`` measures each
option of ``OPTIONS`` once, keeps what it saw in the folder ``--out``, and prints them beside bf16:

- greedy answers to the questions of GSM8K (MIT, OpenAI): how many are right, how many equal those
  of bf16 token for token, and the share of tokens in front of the first other one;
- messages of BANKING77 (CC BY 4.0, PolyAI) sorted, with the answer's form enforced: how many right;
- perplexity of the language reference that comes with Python and of the questions;
- the first answers given to transformers in float32 (teacher-forced): how many tokens are among
  its five likeliest, and how far the engine's log-probabilities are from its own.
"""

import argparse
import csv
import json
import math
import pydoc_data.topics
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import banking77
import torch
from transformers import AutoModelForCausalLM

from engine.attention import open_attention
from engine.attention.backend import BatchLayout
from engine.llm_engine import LLMEngine
from engine.models import load_model
from engine.models.calibration import TEXT as CALIBRATION_TEXT
from engine.models.padded import PaddedModel
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer
from runner.config import Settings
from runner.inference.local.backend import LocalBackend, engine_config

BASE = "bf16"
OPTIONS = {
    "float32": Settings(dtype="float32"),
    BASE: Settings(dtype="bfloat16"),
    "int8 weights": Settings(dtype="bfloat16", quantize=("int8",)),
    "int4 weights": Settings(dtype="bfloat16", quantize=("int4",)),
    "int8 KV": Settings(dtype="bfloat16", quantize=("kv-int8",)),
    "int8 weights and KV": Settings(dtype="bfloat16", quantize=("int8", "kv-int8")),
}
ASK = "Solve the problem step by step, then write the answer as a number at the end."
MAX_TOKENS = 200
WINDOW = 512
TEXT_TOKENS = 12_288
JUDGED = 24
TOP = 5


@dataclass(frozen=True)
class Answers:
    """What was said to the questions, token by token, with its log-probabilities."""

    right: int
    token_ids: list[list[int]]
    logprobs: list[list[float]]


@dataclass(frozen=True)
class Work:
    """A model with an option's settings, and the folder of texts that every option meets."""

    model: Path
    data: Path
    settings: Settings

    @property
    def questions(self) -> list[dict[str, str]]:
        lines = (self.data / "gsm8k-questions.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        prompts = []
        for row in self.questions:
            told = [{"role": "user", "content": f"{row['question']}\n{ASK}"}]
            prompts.append(tokenizer.render_chat(told))
        return prompts


def answer(work: Work) -> Answers:
    """All questions at once, greedily."""
    engine = LLMEngine(engine_config(work.model, work.settings))
    for number, prompt in enumerate(work.prompts(engine.tokenizer)):
        params = SamplingParams(MAX_TOKENS, logprobs=0 if number < JUDGED else None)
        engine.add_request(str(number), prompt, params)
    outputs = {}
    while engine.has_unfinished():
        outputs.update((int(output.request_id), output) for output in engine.step())
    said = [outputs[number] for number in range(len(outputs))]
    results = [row["answer"] for row in work.questions]
    return Answers(
        right=sum(last_number(out.text) == right for out, right in zip(said, results, strict=True)),
        token_ids=[list(out.token_ids) for out in said],
        logprobs=[[told.logprob for told in out.logprobs or ()] for out in said[:JUDGED]],
    )


def last_number(text: str) -> str | None:
    """As GSM8K writes its answers: no sign of thousands, no point behind."""
    numbers = re.findall(r"-?\d[\d,]*\.?\d*", text)
    return numbers[-1].replace(",", "").rstrip(".") if numbers else None


def sort_messages(work: Work, count: int = 200) -> int:
    """How many messages get the right intent."""
    intents = json.loads((work.data / "banking77-categories.json").read_text())
    with (work.data / "banking77-messages.csv").open(newline="") as stream:
        rows = [(row["text"], row["category"]) for row in csv.DictReader(stream)][:count]
    return banking77.run(LocalBackend(work.model, work.settings), rows, intents, True).right


@torch.inference_mode()
def perplexities(work: Work) -> dict[str, float]:
    """By text: e to the mean surprise of its tokens, in windows that begin anew."""
    config = engine_config(work.model, work.settings)
    tokenizer = Tokenizer(work.model)
    model = load_model(config, tokenizer.encode(CALIBRATION_TEXT, False))
    assert not isinstance(model, PaddedModel), "this bench is for the paged lane"
    blocks = -(-WINDOW // config.block_size)
    kv_cache = config.quantisation.kv_cache
    attention = open_attention(model.shapes, config.block_size, model.device, model.dtype, kv_cache)
    attention.allocate(blocks)
    texts = {
        "reference": "\n".join(pydoc_data.topics.topics.values()),
        "questions": "\n".join(row["question"] for row in work.questions),
    }
    found = {}
    for name, text in texts.items():
        ids = tokenizer.encode(text, False)[:TEXT_TOKENS]
        surprise, count = 0.0, 0
        for start in range(0, len(ids) - WINDOW + 1, WINDOW):
            window = torch.tensor(ids[start : start + WINDOW])
            attention.begin(BatchLayout([WINDOW], [WINDOW], [list(range(blocks))]))
            logits = model.logits(window, torch.arange(WINDOW), torch.arange(WINDOW - 1), attention)
            surprise += float(
                torch.nn.functional.cross_entropy(logits.float(), window[1:], reduction="sum")
            )
            count += WINDOW - 1
        found[f"perplexity_{name}"] = math.exp(surprise / count)
    return found


@torch.inference_mode()
def judge(work: Work, answers: Answers) -> dict[str, float]:
    """The first answers beside transformers in float32, given the same tokens."""
    network = AutoModelForCausalLM.from_pretrained(work.model, dtype=torch.float32).eval()
    prompts = work.prompts(Tokenizer(work.model))[:JUDGED]
    in_top, distances = 0, []
    for prompt, ids, told in zip(prompts, answers.token_ids, answers.logprobs, strict=False):
        given = torch.tensor([prompt + ids[:-1]])
        logits = network(given, logits_to_keep=len(ids)).logits[0]
        taken = torch.tensor(ids)[:, None]
        in_top += int((logits.topk(TOP).indices == taken).any(1).sum())
        own = logits.log_softmax(-1).gather(1, taken)[:, 0]
        distances.append((own - torch.tensor(told)).abs())
    distance = torch.cat(distances)
    return {
        "in_top5": in_top / len(distance),
        "logprob_distance": float(distance.mean()),
        "largest_distance": float(distance.max()),
    }


def agreement(answers: list[list[int]], base: list[list[int]]) -> dict[str, float]:
    """Share of answers that are the same, and of their tokens before the first other one."""
    same = sum(one == other for one, other in zip(answers, base, strict=True))
    prefixes = []
    for one, other in zip(answers, base, strict=True):
        pairs = zip(one, other, strict=False)
        equal = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
        prefixes.append(equal / max(len(one), len(other)))
    return {"same_answers": same / len(base), "same_prefix": sum(prefixes) / len(prefixes)}


def measure_answers(work: Work) -> dict[str, object]:
    answers = answer(work)
    return {**asdict(answers), "gsm8k": answers.right, **judge(work, answers)}


def measure_messages(work: Work) -> dict[str, object]:
    return {"banking77": sort_messages(work)}


# Each in a process of its own: an option can be measured in pieces, and taken up again.
PARTS: dict[str, Callable[[Work], Mapping[str, object]]] = {
    "answers": measure_answers,
    "messages": measure_messages,
    "texts": perplexities,
}


def kept(out: Path, option: str, part: str) -> Path:
    """Where a part of an option's figures lies once it is measured."""
    return out / f"{option.replace(' ', '-')}.{part}.json"


def show(out: Path) -> None:
    """What is known so far, beside bf16."""
    base = json.loads(kept(out, BASE, "answers").read_text())
    for option in OPTIONS:
        figures: dict[str, object] = {"option": option}
        for part in PARTS:
            path = kept(out, option, part)
            seen = json.loads(path.read_text()) if path.exists() else {}
            if "token_ids" in seen:
                figures |= agreement(seen["token_ids"], base["token_ids"])
            figures |= {
                key: round(value, 4)
                for key, value in seen.items()
                if isinstance(value, (int, float)) and key != "right"
            }
        print(json.dumps(figures))


def main() -> None:
    """Measure each option in processes of its own, then show them all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=OPTIONS, default=list(OPTIONS))
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--measure", choices=OPTIONS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.measure:
        work = Work(options.model, options.data, OPTIONS[options.measure])
        (part,) = options.parts
        kept(options.out, options.measure, part).write_text(json.dumps(PARTS[part](work)))
        return
    for option in options.only:
        for part in options.parts:
            if not kept(options.out, option, part).exists():
                command = [sys.executable, *sys.argv, "--measure", option, "--parts", part]
                subprocess.run(command, check=True)
    show(options.out)


if __name__ == "__main__":
    main()
