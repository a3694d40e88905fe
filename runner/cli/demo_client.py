"""The demo's client: nothing but the official ``openai`` package, as a user would write it.

``python -m runner.cli.demo_client`` reads one JSON object from standard input (``base_url``,
``api_key``, ``input``, ``output``) and prints the finished batch as JSON.
"""

import json
import sys
import time
from pathlib import Path

from openai import OpenAI
from openai.types import Batch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from runner.cli.console import progress_console

_ENDED = {"completed", "failed", "expired", "cancelled"}
_POLL_SECONDS = 1.0
_PLAIN_SECONDS = 10.0


def run(base_url: str, api_key: str, source: Path, target: Path) -> Batch:
    """Upload a file, run it as a batch, and save its output."""
    client = OpenAI(base_url=base_url, api_key=api_key)
    with source.open("rb") as stream:
        uploaded = client.files.create(file=stream, purpose="batch")
    client.files.wait_for_processing(uploaded.id)
    batch = client.batches.create(
        input_file_id=uploaded.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"name": "demo"},
    )
    batch = watch(client, batch)
    if batch.output_file_id is not None:
        target.write_bytes(client.files.content(batch.output_file_id).read())
    return batch


def watch(client: OpenAI, batch: Batch) -> Batch:
    """Poll until the batch has ended: a bar on a terminal, a line every ten seconds otherwise."""
    columns = (
        TextColumn("{task.description:<11}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("lines"),
        TimeElapsedColumn(),
    )
    is_terminal = progress_console.is_terminal
    told_at = 0.0
    with Progress(*columns, console=progress_console, disable=not is_terminal) as progress:
        bar = progress.add_task(batch.status, total=None)
        while batch.status not in _ENDED:
            time.sleep(_POLL_SECONDS)
            batch = client.batches.retrieve(batch.id)
            counts = batch.request_counts
            done = counts.completed + counts.failed if counts else 0
            total = counts.total if counts else 0
            progress.update(bar, description=batch.status, completed=done, total=total or None)
            if not is_terminal and time.monotonic() - told_at >= _PLAIN_SECONDS:
                told_at = time.monotonic()
                progress_console.print(f"{batch.status}: {done}/{total} lines", highlight=False)
    return batch


if __name__ == "__main__":
    order = json.load(sys.stdin)
    ended = run(order["base_url"], order["api_key"], Path(order["input"]), Path(order["output"]))
    sys.stdout.write(ended.model_dump_json() + "\n")
