"""How fast an installation with the real model reacts: to a cancel, and to a killed engine worker.

``python bench/faults.py`` prints, in seconds, what was seen; nothing else should run meanwhile.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from openai import OpenAI
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Shard, Worker
from runner.db.session import SessionFactory
from runner.domain import ids
from runner.model_library import BUILTIN_MODEL
from runner.runtime import open_runtime

_CANCELS = 5
_LINES = 64


def lines(count: int, max_tokens: int) -> bytes:
    rows = []
    for number in range(count):
        content = f"Write a long story about the number {number}."
        body = {
            "model": BUILTIN_MODEL,
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        line = {
            "custom_id": f"r{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
        rows.append(json.dumps(line).encode() + b"\n")
    return b"".join(rows)


def cli(data_dir: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "runner.cli", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def submit(client: OpenAI, content: bytes) -> str:
    file = client.files.create(file=content, purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def until(look: Callable[[], bool], pause: float = 0.01) -> float:
    """Wait until it is so; returns the seconds that took."""
    started = time.monotonic()
    while not look():
        time.sleep(pause)
    return time.monotonic() - started


def leased(sessions: SessionFactory) -> int:
    with sessions() as session:
        return session.scalar(select(func.count()).where(Shard.state == "leased")) or 0


def cancel_seconds(client: OpenAI, sessions: SessionFactory, busy_seconds: float) -> float:
    """From the request to cancel until the worker has aborted the lines and let go of them."""
    batch = submit(client, lines(_LINES, max_tokens=400))
    until(lambda: leased(sessions) > 0)
    time.sleep(busy_seconds)
    started = time.monotonic()
    client.batches.cancel(batch)
    until(lambda: leased(sessions) == 0)
    seconds = time.monotonic() - started
    until(lambda: client.batches.retrieve(batch).status == "cancelled", 0.1)
    return seconds


def kill_seconds(data_dir: Path, client: OpenAI, sessions: SessionFactory) -> dict[str, float]:
    """From a kill -9 of the engine worker in mid-job to the next one at work."""
    content = lines(_LINES, max_tokens=120).replace(b'"max_tokens": 120', b'"max_tokens": 3', 20)
    batch = submit(client, content)

    def some_done() -> bool:
        counts = client.batches.retrieve(batch).request_counts
        return counts is not None and 0 < counts.completed < _LINES

    until(some_done, 0.05)
    pid = int(cli(data_dir, "status")["children"]["engine-1"]["pid"])
    job_id = ids.decode(ids.JOB_PREFIX, batch)
    started = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    freed = until(lambda: leased(sessions) == 0)
    until(lambda: leased(sessions) > 0)
    again = time.monotonic() - started
    until(lambda: client.batches.retrieve(batch).status == "completed", 0.2)
    with sessions() as session:
        worker = session.scalars(select(Worker).order_by(Worker.id.desc()).limit(1)).one()
        counts = session.execute(
            select(func.sum(Shard.succeeded), func.max(Shard.attempt)).where(Shard.job_id == job_id)
        ).one()
    return {
        "leases_freed": round(freed, 2),
        "leased_again": round(again, 2),
        "of_which_process_start_and_model_load": round((worker.load_us or 0) / 1e6, 2),
        "lines_done": int(counts[0]),
        "attempts_at_most": int(counts[1]),
    }


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        data_dir = Path(folder)
        command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
        server = subprocess.Popen(
            [*command, "--data-dir", folder], stdout=subprocess.PIPE, text=True
        )
        try:
            url = json.loads(server.stdout.readline())["url"] if server.stdout else ""
            key = cli(data_dir, "keys", "create", "--project", "bench")["key"]
            client = OpenAI(base_url=f"{url}/v1", api_key=key)
            runtime = open_runtime(load_settings(data_dir))
            cancels = [
                cancel_seconds(client, runtime.sessions, 3.0 * number) for number in range(_CANCELS)
            ]
            kills = kill_seconds(data_dir, client, runtime.sessions)
            runtime.close()
        finally:
            server.terminate()
            server.wait()
    found = {
        "cancel_seconds": [round(seconds, 2) for seconds in cancels],
        "cancel_median": round(statistics.median(cancels), 2),
        "kill": kills,
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
