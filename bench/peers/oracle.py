"""Whether produced tokens are the model's: ``python oracle.py MODEL WORKLOAD IDS [LINES]``.

Each line is run once through transformers in float32 with its produced tokens given (teacher
forced). Rounding in bfloat16 may swap near-ties, so a token passes if it is among the five
likeliest in its place; the share that is the likeliest is told as well.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

TOP = 5


@torch.inference_mode()
def check(model: str, rows: list[dict], produced: list[list[int]]) -> dict[str, float]:
    """How many tokens are among the top five, and how many are the likeliest."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = in_top = likeliest = 0
    for row, ids in zip(rows, produced, strict=True):
        assert len(ids) == row["max_tokens"], f"{len(ids)} tokens instead of {row['max_tokens']}"
        given = torch.tensor([row["prompt"] + ids[:-1]])
        logits = network(given, logits_to_keep=len(ids)).logits[0]
        best = logits.topk(TOP, dim=-1).indices
        hits = best == torch.tensor(ids)[:, None]
        tokens += len(ids)
        in_top += int(hits.any(1).sum())
        likeliest += int(hits[:, 0].sum())
    return {"tokens": tokens, "in_top5": in_top / tokens, "likeliest": likeliest / tokens}


def main(model: str, workload: str, produced: str, count: str = "16") -> None:
    rows = [json.loads(line) for line in Path(workload).read_text().splitlines()]
    ids = json.loads(Path(produced).read_text())
    # Evenly spread over the file, so that early and late lines are both seen.
    step = max(1, len(rows) // int(count))
    print("RESULT", json.dumps(check(model, rows[::step], ids[::step])))


if __name__ == "__main__":
    main(*sys.argv[1:])
