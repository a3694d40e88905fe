"""``tokenmill profile`` on the worker of a real installation."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

from installation import Server, chat_line, eventually
from openai import OpenAI

from runner.model_library import BUILTIN_MODEL

CANARY = "Quetzalcoatl"


# The worker may give way to another test's model, before its order or in the midst of it, or hear
# of an order when it has lapsed.
NOT_YET = (
    "is starting",
    "No engine worker",
    "ended before it had a line",
    "does not answer",
    "has gone (made room",
)


def profile(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runner.cli", "profile", *words]
    command += ["--data-dir", str(server.data_dir), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_profile_shows_where_the_time_goes_and_nothing_of_the_lines(
    server: Server, client: OpenAI, tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json.gz"
    none = profile(server, "engine-9", "-o", str(trace))
    assert (none.returncode, trace.exists()) == (2, False)
    assert "engine-9" in none.stderr

    def of_a_worker(*words: str) -> subprocess.CompletedProcess[str]:
        def ask() -> subprocess.CompletedProcess[str] | None:
            done = profile(server, *words, "-o", str(trace))
            return None if any(word in done.stderr for word in NOT_YET) else done

        return eventually(ask, 150)

    idle = of_a_worker("--wait", "4")
    assert (idle.returncode, trace.exists()) == (1, False), idle.stderr
    assert "waiting up to 4 s" in idle.stderr
    assert "was idle" in idle.stderr

    content = b"".join(
        chat_line(f"r{n}", BUILTIN_MODEL, f"{CANARY} {n}?", max_tokens=1500, ignore_eos=True)
        for n in range(32)
    )
    file = client.files.create(file=content, purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    done = of_a_worker("engine-1", "--steps", "4", "--wait", "120")
    client.batches.cancel(batch.id)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["steps"] == 4
    assert told["step_ms_p95"] >= told["step_ms_p50"] > 0
    assert told["tokens_per_step"] >= told["rows_per_step"] >= 1
    assert sum(told["shares"].values()) > 0.99
    # Where kernels can be compiled the forward is one call in C++, else operations of torch.
    assert told["shares"]["sampling"] > 0
    parts = [told["shares"][part] for part in ("fused layers", "attention", "matrix products")]
    assert parts[0] > 0.1 or min(parts[1:]) > 0
    text = gzip.decompress(trace.read_bytes()).decode()
    assert json.loads(text)["traceEvents"]
    for secret in (CANARY, server.key, batch.id):
        assert secret not in text
