"""File in, file out, on a real model: how much of the time the engine computes.

``python bench/whole_path.py --model FOLDER --lines 4096`` starts an installation in a temporary
folder with one engine worker, waits until the model is loaded, uploads lines of ``shared``
(`workload.py`) through the official client, and downloads the answers. Of the time from the
create to the end of the batch, and to the last byte of the answers, it prints the share that the
engine spent in steps: the sum of what the ledger says of every line.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import workload as workloads
from openai import OpenAI
from sqlalchemy import text
from system import cli, wait

from runner.config import load_settings
from runner.runtime import open_runtime

_ENDED = {"completed", "failed", "expired", "cancelled"}


def write_input(path: Path, model: str, folder: Path, lines: int) -> None:
    """Completions of token ids, so that lengths are those of the engine's own benchmark."""
    vocab_size = json.loads((folder / "config.json").read_text())["vocab_size"]
    with path.open("w") as stream:
        for number, row in enumerate(workloads.lines("shared", lines, vocab_size)):
            line = {
                "custom_id": f"row-{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {"model": model, "temperature": 0, **row},
            }
            stream.write(json.dumps(line) + "\n")


def run(client: OpenAI, source: Path) -> dict[str, float]:
    started = time.monotonic()
    with source.open("rb") as stream:
        file = client.files.create(file=stream, purpose="batch")
    uploaded = time.monotonic()
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )
    batch = wait(client, batch, _ENDED)
    finished = time.monotonic()
    if batch.status != "completed":
        raise SystemExit(f"the batch ended as {batch.status}: {batch.errors}")
    answers = client.files.content(batch.output_file_id or "").content
    downloaded = time.monotonic()
    return {
        "answers": answers.count(b"\n"),
        "upload_seconds": uploaded - started,
        "batch_seconds": finished - uploaded,
        "download_seconds": downloaded - finished,
    }


def device_seconds(data_dir: Path) -> dict[str, float]:
    runtime = open_runtime(load_settings(data_dir))
    with runtime.sessions() as session:
        row = session.execute(
            text("SELECT sum(device_us) / 1e6, sum(output_tokens), count(*) FROM usage")
        ).one()
    runtime.close()
    return {"device_seconds": float(row[0]), "output_tokens": int(row[1]), "lines": int(row[2])}


def measure(data_dir: Path, folder: Path, lines: int) -> dict[str, Any]:
    name = "bench-model"
    cli(data_dir, "models", "add", name, str(folder))
    source = data_dir / "input.jsonl"
    write_input(source, name, folder, lines)
    command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
    server = subprocess.Popen(
        [*command, "--data-dir", str(data_dir)], stdout=subprocess.PIPE, text=True
    )
    try:
        url = json.loads(server.stdout.readline())["url"] if server.stdout else ""
        key = cli(data_dir, "keys", "create", "--project", "bench")["key"]
        wait_for_engine(data_dir)
        found = run(OpenAI(base_url=f"{url}/v1", api_key=key), source)
        found |= device_seconds(data_dir)
    finally:
        server.terminate()
        server.wait()
    whole = found["upload_seconds"] + found["batch_seconds"] + found["download_seconds"]
    found["busy_share_of_batch"] = found["device_seconds"] / found["batch_seconds"]
    found["busy_share_file_in_to_file_out"] = found["device_seconds"] / whole
    found["output_tokens_per_second"] = found["output_tokens"] / found["batch_seconds"]
    return {name: round(value, 4) for name, value in found.items()}


def wait_for_engine(data_dir: Path) -> None:
    """Until a worker has loaded the model."""
    runtime = open_runtime(load_settings(data_dir))
    ready = text("SELECT count(*) FROM workers WHERE kind = 'engine' AND state = 'ready'")
    with runtime.sessions() as session:
        while not session.execute(ready).scalar_one():
            session.rollback()
            time.sleep(0.2)
    runtime.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a folder of safetensors")
    parser.add_argument("--lines", type=int, default=4096)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        found = measure(Path(folder), asked.model, asked.lines)
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
