"""The whole system without a model: how many lines a second, at what cost in bytes and memory.

``python bench/system.py --lines 500000 [--kill]`` starts an installation in a temporary folder,
uploads a file through the official client, runs it on the stub backend at full speed, kills one
engine worker on the way, and prints what was seen as JSON.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import text

from runner.config import load_settings
from runner.runtime import Runtime, open_runtime

MODEL = "stub"
_SAMPLE_SECONDS = 0.5


class MemoryWatch(threading.Thread):
    """The peak resident memory of each process of an installation, sampled."""

    def __init__(self, supervisor: psutil.Process) -> None:
        super().__init__(daemon=True)
        self._supervisor = supervisor
        self._done = threading.Event()
        self.peaks: dict[str, int] = {}

    def run(self) -> None:
        while not self._done.wait(_SAMPLE_SECONDS):
            for process in [self._supervisor, *self._supervisor.children(recursive=True)]:
                try:
                    name = _role(process.cmdline())
                    size = process.memory_full_info().uss
                except psutil.Error:
                    continue
                self.peaks[name] = max(self.peaks.get(name, 0), size)

    def stop(self) -> dict[str, float]:
        self._done.set()
        self.join()
        return {name: round(size / 2**20, 1) for name, size in sorted(self.peaks.items())}


def _role(command: list[str]) -> str:
    line = " ".join(command)
    for word, role in (
        ("gunicorn", "web"),
        ("beat", "beat"),
        ("--engine", "engine worker"),
        ("-Q cpu", "CPU worker"),
        ("valkey", "valkey"),
        ("postgres", "postgres (largest process)"),
        ("runner.cli up", "supervisor"),
    ):
        if word in line:
            return role
    return "other"


def input_lines(count: int) -> Iterator[bytes]:
    """Chat lines of about 300 bytes, like short classification rows."""
    for number in range(count):
        message = f"Message {number}: my card has not arrived and I would like to know why. "
        body = {
            "model": MODEL,
            "messages": [
                {"role": "system", "content": "Name the intent of the message in one word."},
                {"role": "user", "content": message},
            ],
            "max_tokens": 8,
        }
        line = {
            "custom_id": f"row-{number}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": body,
        }
        yield json.dumps(line).encode() + b"\n"


def cli(data_dir: Path, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "runner.cli", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def volume(runtime: Runtime) -> dict[str, int]:
    """Bytes of the database and of the log written so far."""
    with runtime.sessions() as session:
        row = session.execute(
            text(
                "SELECT pg_database_size(current_database()),"
                " pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"
            )
        ).one()
    return {"database": int(row[0]), "wal": int(row[1])}


def wait(client: OpenAI, batch: Batch, until: set[str]) -> Batch:
    while batch.status not in until:
        time.sleep(0.2)
        batch = client.batches.retrieve(batch.id)
    return batch


def kill_one_worker(data_dir: Path, client: OpenAI, batch: Batch, at: int) -> None:
    """Kill the engine worker once so many lines are done."""
    while (counts := client.batches.retrieve(batch.id).request_counts) is None or (
        counts.completed < at
    ):
        time.sleep(0.2)
    os.kill(int(cli(data_dir, "status")["children"]["engine-1"]["pid"]), signal.SIGKILL)


def measure(data_dir: Path, lines: int, kill: bool) -> dict[str, Any]:
    cli(data_dir, "models", "add", MODEL, "stub:")
    source = data_dir / "input.jsonl"
    with source.open("wb") as stream:
        stream.writelines(input_lines(lines))
    command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
    server = subprocess.Popen(
        [*command, "--data-dir", str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = json.loads(server.stdout.readline())["url"] if server.stdout else ""
        key = cli(data_dir, "keys", "create", "--project", "bench")["key"]
        client = OpenAI(base_url=f"{url}/v1", api_key=key)
        return run(data_dir, client, source, lines, kill, psutil.Process(server.pid))
    finally:
        server.terminate()
        server.wait()


def run(
    data_dir: Path,
    client: OpenAI,
    source: Path,
    lines: int,
    kill: bool,
    supervisor: psutil.Process,
) -> dict[str, Any]:
    runtime = open_runtime(load_settings(data_dir))
    watch = MemoryWatch(supervisor)
    watch.start()
    before = volume(runtime)
    started = time.monotonic()
    with source.open("rb") as stream:
        file = client.files.create(file=stream, purpose="batch")
    uploaded = time.monotonic()
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    ended = {"completed", "failed", "expired", "cancelled"}
    batch = wait(client, batch, {"in_progress", *ended})
    ingested = time.monotonic()
    if kill:
        kill_one_worker(data_dir, client, batch, lines // 3)
    batch = wait(client, batch, {"finalizing", *ended})
    drained = time.monotonic()
    batch = wait(client, batch, ended)
    finished = time.monotonic()
    after = volume(runtime)
    downloaded_lines = downloaded_bytes = 0
    with client.files.with_streaming_response.content(batch.output_file_id or "") as answer:
        for piece in answer.iter_bytes(2**20):
            downloaded_bytes += len(piece)
            downloaded_lines += piece.count(b"\n")
    downloaded = time.monotonic()
    runtime.close()
    return {
        "lines": lines,
        "status": batch.status,
        "counts": batch.request_counts.model_dump() if batch.request_counts else None,
        "killed_a_worker": kill,
        "input_bytes": source.stat().st_size,
        "upload_seconds": round(uploaded - started, 2),
        "ingest_seconds": round(ingested - uploaded, 2),
        "drain_seconds": round(drained - ingested, 2),
        "close_seconds": round(finished - drained, 2),
        "whole_path_lines_per_second": round(lines / (finished - started)),
        "drain_lines_per_second": round(lines / (drained - ingested)),
        "database_bytes_per_line": round((after["database"] - before["database"]) / lines),
        "wal_bytes_per_line": round((after["wal"] - before["wal"]) / lines),
        "download_seconds": round(downloaded - finished, 2),
        "download_lines": downloaded_lines,
        "download_bytes": downloaded_bytes,
        "peak_mib": watch.stop(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lines", type=int, default=500_000)
    parser.add_argument("--kill", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        found = measure(Path(folder), arguments.lines, arguments.kill)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
