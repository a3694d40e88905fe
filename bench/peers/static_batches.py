"""Transformers' generate over padded batches: ``python static_batches.py MODEL WORKLOAD OUT``.

Each batch runs until its longest line ends; a line counts only the tokens it asked for.
"""

import json
import sys
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

BATCH = 64
PAD = 0


def main(model: str, workload: str, out: str) -> None:
    rows = [json.loads(line) for line in Path(workload).read_text().splitlines()]
    started = time.perf_counter()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).eval()
    loaded = time.perf_counter()
    ids: list[list[int]] = []
    for first in range(0, len(rows), BATCH):
        ids += answer(network, rows[first : first + BATCH])
    seconds = time.perf_counter() - loaded
    Path(out).write_text(json.dumps(ids))
    print("RESULT", json.dumps({"seconds": seconds, "load_seconds": loaded - started}))


def answer(network: torch.nn.Module, rows: list[dict]) -> list[list[int]]:
    longest = max(len(row["prompt"]) for row in rows)
    most = max(row["max_tokens"] for row in rows)
    ids = torch.full((len(rows), longest), PAD)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row["prompt"]) :] = torch.tensor(row["prompt"])
        mask[number, longest - len(row["prompt"]) :] = 1
    made = network.generate(
        ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=most,
        min_new_tokens=most,
        pad_token_id=PAD,
    )
    return [
        made[number, longest : longest + row["max_tokens"]].tolist()
        for number, row in enumerate(rows)
    ]


if __name__ == "__main__":
    main(*sys.argv[1:4])
