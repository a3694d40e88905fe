"""What outages cost an installation of stub workers under load, as a table in Markdown.

``python bench/outages.py [--hang SECONDS] [NAME...]`` runs each fault on a job of its own. Printed
are the answers of the web process, the seconds from the end of the fault to the next committed
line, the lines that were leased a second time (no more than these were run twice), and whether all
adds up. Nothing else should run meanwhile. Leases, heartbeats and ticks are those of production.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis
from faults import cli, submit, until
from openai import OpenAI
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Job, Result, Shard, Usage
from runner.db.session import OUTAGES
from runner.domain import ids
from runner.runtime import Runtime, open_runtime

_MODEL = "slow"
_LINES = 1_500
_PORT = 18_765


def lines() -> bytes:
    rows = []
    for number in range(_LINES):
        body = {"model": _MODEL, "messages": [{"role": "user", "content": f"line {number}"}]}
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/chat/completions"}
        rows.append(json.dumps({**line, "body": body}).encode() + b"\n")
    return b"".join(rows)


@dataclass
class House:
    """An installation with two engine workers of eight rows each."""

    data_dir: Path
    process: "subprocess.Popen[str] | None" = None
    key: str = ""
    _runtime: Runtime | None = None

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None
        return self._runtime

    def up(self) -> None:
        command = [sys.executable, "-m", "runner.cli", "up", "--port", str(_PORT), "--json"]
        command += ["--data-dir", str(self.data_dir), "--workers", "2", "--model", _MODEL]
        log = (self.data_dir / "up.log").open("a")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "it did not start"
        self.key = self.key or cli(self.data_dir, "keys", "create", "--project", "bench")["key"]
        # The address of a database that was stopped in order is another the next time.
        if self._runtime is not None:
            self._runtime.close()
        self._runtime = open_runtime(load_settings(self.data_dir), patience_seconds=10.0)

    def end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"http://127.0.0.1:{_PORT}/v1", api_key=self.key, max_retries=8)

    def pid(self, name: str) -> int:
        status = cli(self.data_dir, "status")
        return int((status["children"] | status["services"])[name]["pid"])

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid(name), number)

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        process = psutil.Process(self.pid(name))
        family = [process, *process.children(recursive=True)]
        for member in family:
            member.suspend()
        try:
            yield
        finally:
            for member in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    member.resume()


class Asker:
    """Asks for the list of batches five times a second and counts the answers."""

    def __init__(self, house: House) -> None:
        self.answers: Counter[str] = Counter()
        self._house = house
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Asker":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._house.key}"}
        url = f"http://127.0.0.1:{_PORT}/v1/batches"
        while not self._ended.wait(0.2):
            try:
                request = urllib.request.Request(url, headers=headers)
                with urllib.request.urlopen(request, timeout=90) as answer:
                    self.answers[str(answer.status)] += 1
            except urllib.error.HTTPError as error:
                self.answers[str(error.code)] += 1
            except OSError:
                self.answers["no answer"] += 1


def committed(runtime: Runtime, job_id: object) -> int:
    """Lines with a result; -1 while the database is away."""
    try:
        with runtime.sessions() as session:
            query = select(func.coalesce(func.sum(Shard.succeeded), 0))
            return int(session.scalar(query.where(Shard.job_id == job_id)) or 0)
    except OUTAGES:
        return -1


def verdict(runtime: Runtime, job_id: object) -> tuple[int, int, str]:
    """Lines leased again, the most attempts of a shard, and whether all adds up."""
    with runtime.sessions() as session:
        again = session.scalar(
            select(func.count()).where(Result.job_id == job_id, Result.epoch > 1)
        )
        attempt = session.scalar(select(func.max(Shard.attempt)).where(Shard.job_id == job_id))
        results, distinct = session.execute(
            select(func.count(), func.count(Result.idx.distinct())).where(Result.job_id == job_id)
        ).one()
        usage, billed = session.execute(
            select(func.count(), func.coalesce(func.sum(Usage.output_tokens), 0)).where(
                Usage.job_id == job_id
            )
        ).one()
        job = session.get_one(Job, job_id)
        holds = results == distinct == usage == job.output_lines == job.total_items == _LINES
        holds = holds and int(billed) == job.output_tokens
    return again or 0, attempt or 0, "yes" if holds else "NO"


def run(house: House, name: str, fault: Callable[[], None]) -> str:
    client = house.client()
    batch = submit(client, lines())
    job_id = ids.decode(ids.JOB_PREFIX, batch)
    until(lambda: committed(house.runtime, job_id) > 100)
    with Asker(house) as asker:
        fault()
        before = max(committed(house.runtime, job_id), 0)
        seconds = until(lambda: committed(house.runtime, job_id) >= min(before + 1, _LINES))
        until(lambda: client.batches.retrieve(batch).status == "completed", 0.5)
    again, attempt, holds = verdict(house.runtime, job_id)
    seen = ", ".join(f"{count} x {status}" for status, count in sorted(asker.answers.items()))
    return f"| {name} | {seen} | {seconds:.1f} | {again} | {attempt} | {holds} |"


def faults_of(house: House, hang: float) -> dict[str, Callable[[], None]]:
    def freeze(name: str) -> None:
        with house.frozen(name):
            time.sleep(hang)

    def flush() -> None:
        with redis.Redis.from_url(house.runtime.urls.broker_url) as broker:
            broker.flushall()

    def again(number: signal.Signals) -> None:
        house.end(number)
        house.up()

    return {
        "web-killed": lambda: house.kill("web"),
        "beat-killed": lambda: house.kill("beat"),
        "cpu-killed": lambda: house.kill("cpu"),
        "engine-killed": lambda: house.kill("engine-1"),
        "engine-term": lambda: house.kill("engine-1", signal.SIGTERM),
        "postgres-killed": lambda: house.kill("postgres"),
        "postgres-restarted": lambda: house.kill("postgres", signal.SIGINT),
        "postgres-hangs": lambda: freeze("postgres"),
        "broker-killed": lambda: house.kill("valkey"),
        "broker-flushed": flush,
        "broker-hangs": lambda: freeze("valkey"),
        "up-killed-and-up": lambda: again(signal.SIGKILL),
        "down-and-up": lambda: again(signal.SIGTERM),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hang", type=float, default=60.0, help="seconds that a server hangs")
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokenmill-bench-") as folder:
        house = House(Path(folder))
        (house.data_dir / "models").mkdir()
        cli(house.data_dir, "models", "add", _MODEL, "stub:?rows=8&step_ms=40")
        house.up()
        try:
            sys.stdout.write("| fault | answers of the web | s | again | attempts | adds up |\n")
            sys.stdout.write("|---|---|---|---|---|---|\n")
            for name, fault in faults_of(house, asked.hang).items():
                if not asked.names or name in asked.names:
                    sys.stdout.write(run(house, name, fault) + "\n")
                    sys.stdout.flush()
        finally:
            house.runtime.close()
            house.end(signal.SIGTERM)


if __name__ == "__main__":
    main()
