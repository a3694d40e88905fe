"""Reproducible workloads of token ids: ``python bench/workload.py mixed 256 MODEL_FOLDER OUT``.

``mixed`` has unique prompts of 190 tokens on average and 97 tokens out, up to 512; ``shared`` an
instruction of 512 tokens before 32 to 128 of each line's own, and 16 to 96 out. Lengths are spread
as those of real files. The same arguments always make the same lines.
"""

import json
import random
import sys
from pathlib import Path

SEED = 7
SHARED_TOKENS = 512
SPECIAL_IDS = 1000
"""Ids at both ends of a vocabulary that may be special; no prompt holds one."""


def lines(kind: str, count: int, vocab_size: int) -> list[dict[str, object]]:
    """``count`` lines of ``{"prompt": ids, "max_tokens": n}``."""
    draw = random.Random(SEED)
    ids = range(SPECIAL_IDS, vocab_size - SPECIAL_IDS)
    shared = draw.choices(ids, k=SHARED_TOKENS)
    made = []
    for _ in range(count):
        if kind == "shared":
            prompt = shared + draw.choices(ids, k=draw.randint(32, 128))
            max_tokens = draw.randint(16, 96)
        else:
            prompt = draw.choices(ids, k=_length(draw, 180, 16, 1500))
            max_tokens = _length(draw, 96, 8, 512)
        made.append({"prompt": prompt, "max_tokens": max_tokens})
    return made


def write(path: Path, kind: str, count: int, model: Path) -> None:
    """Write a workload for a model's vocabulary."""
    vocab_size = json.loads((model / "config.json").read_text())["vocab_size"]
    rows = lines(kind, count, vocab_size)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _length(draw: random.Random, mean: int, low: int, high: int) -> int:
    return max(low, min(high, int(draw.lognormvariate(0, 0.8) * mean / 1.377)))


if __name__ == "__main__":
    write(Path(sys.argv[4]), sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
