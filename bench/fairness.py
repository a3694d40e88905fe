"""Two equal jobs of two projects, and an urgent one that comes into them.

``python bench/fairness.py --model FOLDER --lines 10000 --out fairness.png`` starts an installation
in a temporary folder with one engine worker, submits a job of so many lines for each of two
projects, and after ``--before`` seconds a job of 100 lines with priority 10. ``--after`` seconds
after its end everything is stopped. It prints how long the urgent job waited for its first line and
its first token (at most: the moment is told from the commit of a line, which comes up to 0.25 s
after its end), and draws the lines finished over time. ``--model stub:?rows=64&step_ms=20`` needs
no weights, and tells no first token. Needs matplotlib (``pip install tokenmill[bench]``).
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot  # noqa: E402  (it reads the choice above)
from openai import OpenAI  # noqa: E402
from sqlalchemy import text  # noqa: E402
from system import cli, wait  # noqa: E402
from whole_path import wait_for_engine  # noqa: E402

from runner.config import load_settings  # noqa: E402
from runner.runtime import open_runtime  # noqa: E402

_MODEL = "bench-model"
_URGENT_LINES = 100
_ENDED = {"completed", "failed", "expired", "cancelled"}
_Jobs = Sequence[tuple[datetime, list[float], list[float]]]
_NAMES = ("first project", "second project", "urgent, priority 10")


def make_input(lines: int, max_tokens: int) -> bytes:
    """Chats that all differ, of some 40 tokens, each with an answer of exactly so many tokens."""
    out = []
    for number in range(lines):
        said = f"Tell me about the number {number}, and what is told of it. " * 2
        body = {
            "model": _MODEL,
            "messages": [{"role": "user", "content": said}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
        }
        url = "/v1/chat/completions"
        line = {"custom_id": f"row-{number}", "method": "POST", "url": url, "body": body}
        out.append(json.dumps(line).encode() + b"\n")
    return b"".join(out)


def submit(client: OpenAI, data: bytes, **extra: object) -> str:
    file = client.files.create(file=("lines.jsonl", data), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body=extra,
    )
    return batch.id


def run(clients: Sequence[OpenAI], asked: argparse.Namespace) -> None:
    data = make_input(asked.lines, asked.max_tokens)
    batches = [submit(client, data) for client in clients]
    for client, batch_id in zip(clients, batches, strict=True):
        wait(client, client.batches.retrieve(batch_id), {"in_progress"})
    time.sleep(asked.before)
    urgent = submit(clients[0], make_input(_URGENT_LINES, asked.max_tokens), priority=10)
    deadline = time.monotonic() + asked.patience
    while clients[0].batches.retrieve(urgent).status not in _ENDED:
        if time.monotonic() > deadline:
            return  # what there is by now is told
        time.sleep(0.5)
    time.sleep(asked.after)


def read_times(data_dir: Path) -> list[tuple[datetime, list[float], list[float]]]:
    """For each job, oldest first: its creation; ends and first tokens of its lines, in seconds
    since the creation of the first job."""
    query = text(
        "SELECT jobs.id, jobs.created_at, usage.created_at, total_us, first_token_us"
        " FROM jobs JOIN usage ON usage.job_id = jobs.id ORDER BY jobs.id, usage.created_at"
    )
    runtime = open_runtime(load_settings(data_dir))
    with runtime.sessions() as session:
        rows = session.execute(query).all()
    runtime.close()
    zero = min(row[1] for row in rows)
    jobs: dict[object, tuple[datetime, list[float], list[float]]] = {}
    for job_id, created, committed, total_us, first_token_us in rows:
        _, ends, firsts = jobs.setdefault(job_id, (created, [], []))
        ends.append((committed - zero).total_seconds())
        if first_token_us:
            waited = (committed - created).total_seconds()
            firsts.append(waited - (total_us - first_token_us) / 1e6)
    return list(jobs.values())


def draw(jobs: _Jobs, path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    for name, (_, ends, _) in zip(_NAMES, jobs, strict=True):
        axes.step(ends, range(1, len(ends) + 1), where="post", label=name)
    came = (jobs[-1][0] - jobs[0][0]).total_seconds()
    axes.axvline(came, color="grey", linestyle=":", label="the urgent job comes")
    axes.set(xlabel="seconds", ylabel="lines finished", title="Two equal jobs and an urgent one")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=110, bbox_inches="tight")


def measure(data_dir: Path, asked: argparse.Namespace) -> None:
    cli(data_dir, "models", "add", _MODEL, asked.model)
    command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
    server = subprocess.Popen(
        [*command, "--data-dir", str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = json.loads(server.stdout.readline())["url"] if server.stdout else ""
        keys = [
            cli(data_dir, "keys", "create", "--project", name)["key"] for name in ("one", "two")
        ]
        wait_for_engine(data_dir)
        run([OpenAI(base_url=f"{url}/v1", api_key=key) for key in keys], asked)
        jobs = read_times(data_dir)
        report(jobs, asked)
    finally:
        server.terminate()
        server.wait()


def report(jobs: _Jobs, asked: argparse.Namespace) -> None:
    """Print the figures and draw, before anything is stopped."""
    if len(jobs) < len(_NAMES):
        sys.exit("A job had no line by then; take a larger --patience, or shorter answers.")
    if asked.out:
        draw(jobs, asked.out)
    came = (jobs[-1][0] - jobs[0][0]).total_seconds()
    found = {
        "lines_before": [sum(end < came for end in ends) for _, ends, _ in jobs[:2]],
        "lines_in_all": [len(ends) for _, ends, _ in jobs[:2]],
        "urgent_first_line_seconds": round(min(jobs[-1][1]) - came, 3),
        "urgent_first_token_seconds": round(min(jobs[-1][2]), 3) if jobs[-1][2] else None,
        "urgent_lines": len(jobs[-1][1]),
        "urgent_last_line_seconds": round(max(jobs[-1][1]) - came, 3),
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a folder of safetensors, or stub:")
    parser.add_argument("--lines", type=int, default=10_000, help="of each of the two jobs")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--before", type=float, default=15.0)
    parser.add_argument("--after", type=float, default=10.0)
    parser.add_argument("--patience", type=float, default=30.0, help="for the urgent job")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        measure(Path(folder), asked)


if __name__ == "__main__":
    main()
