"""What the peers' scripts share: load a model once, then run one workload after the other.

``python PEER.py MODEL DTYPE`` says READY when it has loaded. Each line of its standard input,
``{"workload": path, "out": path}``, is one run; it writes the generated ids to ``out`` and prints
``RESULT {"seconds": s}``. It ends with its input. Each peer has an environment of its own, so this
file imports nothing but the standard library.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

Rows = list[dict]
"""Of each line the token ids of its ``prompt``, and its ``max_tokens``."""
Run = Callable[[Rows], tuple[float, list[list[int]]]]
"""Answers rows with a cold prefix cache: seconds from the first row added, and the ids of each."""


def take_turns(load: Callable[[str, str], Run]) -> None:
    """Serve runs until the input ends."""
    run = load(sys.argv[1], sys.argv[2])
    print("READY", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        rows = [json.loads(row) for row in Path(asked["workload"]).read_text().splitlines()]
        seconds, ids = run(rows)
        Path(asked["out"]).write_text(json.dumps(ids))
        print("RESULT", json.dumps({"seconds": seconds}), flush=True)
