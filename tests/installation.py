"""A whole installation for a test: ``tokenmill up`` in a data directory of its own."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from openai import OpenAI

from runner.supervisor import read_up_state

T = TypeVar("T")
STOP_SECONDS = 150
PATIENCE_SECONDS = 90.0  # a machine may be slow, and stand still for seconds


@dataclass(frozen=True)
class Server:
    """A running installation and a key to it."""

    data_dir: Path
    url: str
    key: str

    def client(self, key: str | None = None) -> OpenAI:
        """The official client, pointed here."""
        return OpenAI(base_url=f"{self.url}/v1", api_key=key or self.key, max_retries=0)

    def status(self) -> dict[str, Any]:
        """What ``tokenmill status`` tells of every process, without a process to tell it."""
        state = read_up_state(self.data_dir)
        assert state is not None, "nobody supervises"
        return state.model_dump()

    def pid(self, child: str) -> int:
        """The process id of a child, such as ``engine-1`` or ``cpu``, once it runs."""
        return int(eventually(lambda: self.status()["children"][child]["pid"]))


@contextmanager
def running_server(
    data_dir: Path, *options: str, key: str | None = None, **settings: str
) -> Iterator[Server]:
    """Start an installation, wait until it is ready, stop it in order; a key is made if need be."""
    environment = os.environ | {f"TOKENMILL_{k.upper()}": v for k, v in settings.items()}
    command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
    command += ["--data-dir", str(data_dir), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        ready = process.stdout.readline()
        assert ready, "the installation did not start"
        key = key or run_cli(data_dir, "keys", "create", "--project", "tests")["key"]
        yield Server(data_dir, json.loads(ready)["url"], key)
    finally:
        process.terminate()
        code = process.wait(STOP_SECONDS)
        process.stdout.close()
    assert code == 0, "the installation did not stop in order"


def run_cli(data_dir: Path, *arguments: str, check: bool = True) -> Any:  # noqa: ANN401
    """Run one verb with --json and read what it prints."""
    command = [sys.executable, "-m", "runner.cli", *arguments, "--data-dir", str(data_dir)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    if check:
        assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def eventually(look: Callable[[], T | None | bool], seconds: float = PATIENCE_SECONDS) -> T:
    """The first true answer within some seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found  # type: ignore[return-value]
        time.sleep(0.1)
    raise AssertionError("it did not come true in time")


def chat_line(custom_id: str, model: str, text: str, **body: object) -> bytes:
    """One line of an input file."""
    messages = [{"role": "user", "content": text}]
    request: Mapping[str, object] = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": model, "messages": messages, **body},
    }
    return json.dumps(request).encode() + b"\n"
