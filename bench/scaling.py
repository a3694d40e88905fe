"""How time and memory grow: ``python bench/scaling.py lines|rows --model FOLDER --out CHART.png``.

``lines`` runs 256, 1,024 and 4,096 lines of ``shared``: seconds should be linear, memory flat (the
KV pool is small here: a large one goes on keeping what might be shared until it is full).
``rows`` runs 256 lines of ``mixed`` with 1 to 512 rows computed at once. Each run is a process of
its own. Needs matplotlib (``pip install tokenmill[bench]``).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import matplotlib as mpl
import workload as workloads

mpl.use("Agg")
from matplotlib import pyplot  # noqa: E402  (it reads the choice above)

LINES = (256, 1024, 4096)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MOST_LINES_OF_FEW_ROWS = 32  # lines per row: few rows need not take an hour to show their rate


@dataclass(frozen=True)
class Point:
    """One run. ``at`` is its number of lines or of rows."""

    at: int
    seconds: float
    tokens_per_second: float
    peak_mib: float


def run(model: Path, workload: Path, rows: int, memory: float) -> tuple[dict[str, float], float]:
    """The summary of a run, and the peak of its process's resident memory in MiB."""
    settings = [f"TOKENMILL_MAX_NUM_SEQS={rows}", "TOKENMILL_MAX_NUM_BATCHED_TOKENS=512"]
    settings.append(f"TOKENMILL_MEMORY_UTILIZATION={memory}")
    engine = [sys.executable, "-m", "runner.inference.local.bench", str(model), str(workload), ""]
    process = subprocess.Popen(["env", *settings, *engine], stdout=subprocess.PIPE)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"the engine failed with {rows} rows over {workload}")
    summary: dict[str, float] = json.loads(printed.splitlines()[-1])
    return summary, usage.ru_maxrss / 1024


def points(model: Path, folder: Path, kind: str) -> list[Point]:
    found = []
    for at in LINES if kind == "lines" else ROWS:
        count = at if kind == "lines" else min(256, at * MOST_LINES_OF_FEW_ROWS)
        path = folder / f"{kind}-{at}.jsonl"
        workloads.write(path, "shared" if kind == "lines" else "mixed", count, model)
        of_lines = kind == "lines"
        summary, peak = run(model, path, 256 if of_lines else at, 0.1 if of_lines else 0.5)
        rate = summary["output_tokens_per_second"]
        found.append(Point(at, summary["seconds"], rate, peak))
        print(f"{at:>5} {kind}: {summary['seconds']:8.1f} s {rate:7.0f} out tok/s {peak:7.0f} MiB")
    return found


def draw(found: list[Point], kind: str, out: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    across = [point.at for point in found]
    if kind == "lines":
        axes.plot(across, [point.seconds for point in found], marker="o", color="#1f6feb")
        axes.set(xlabel="lines of shared", ylabel="seconds", ylim=(0, None), xlim=(0, None))
        second = axes.twinx()
        second.plot(across, [point.peak_mib for point in found], marker="s", color="#bf5b04")
        second.set(ylabel="peak memory of the process, MiB", ylim=(0, None))
        second.yaxis.label.set_color("#bf5b04")
        axes.yaxis.label.set_color("#1f6feb")
    else:
        axes.plot(across, [point.tokens_per_second for point in found], marker="o")
        axes.set(xlabel="rows computed at once", ylabel="output tokens per second, mixed")
        axes.set_xscale("log", base=2)
        axes.set_xticks(across, [str(rows) for rows in across])
        axes.set_ylim(0, None)
    axes.grid(alpha=0.3)
    figure.savefig(out, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("lines", "rows"))
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--out", type=Path, required=True, help="where the chart goes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        draw(points(asked.model, Path(folder), asked.kind), asked.kind, asked.out)


if __name__ == "__main__":
    main()
