"""Transformers' generate over padded batches; see ``turns`` for how it is driven.

Each batch runs until its longest line ends; a line counts only the tokens it asked for.
"""

import time

import torch
from transformers import AutoModelForCausalLM
from turns import Rows, Run, take_turns

BATCH = 64
PAD = 0


def load(model: str, dtype: str) -> Run:
    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()

    def run(rows: Rows) -> tuple[float, list[list[int]]]:
        started = time.perf_counter()
        ids: list[list[int]] = []
        for first in range(0, len(rows), BATCH):
            ids += answer(network, rows[first : first + BATCH])
        return time.perf_counter() - started, ids

    return run


def answer(network: torch.nn.Module, rows: Rows) -> list[list[int]]:
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
    take_turns(load)
