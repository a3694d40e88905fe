"""What looking for equal lines costs, and how fast copies get their answers, on a private Postgres.

``python bench/reuse.py [--lines 50000]`` reads a file of different lines with each kind of
``dedupe``, then one in which each line comes a hundred times, has the stub answer the first of
each, settles the copies, and at last hands the same file in again for a job that takes all of it
from the project.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.config import Settings
from runner.db import migrate
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.ids import JobId
from runner.domain.lanes import Lane
from runner.domain.reuse import Dedupe
from runner.embedded import EmbeddedServices
from runner.inference.stub import StubBackend
from runner.services import files, jobs, leases, models, projects, workers
from runner.services.closing import close_job
from runner.services.copies import run_copies
from runner.services.ingest import run_ingest
from runner.services.items import read_items
from runner.services.jobs import NewJob, cancel_job
from runner.services.keys import Caller
from runner.services.results import commit_results
from runner.worker.lines import finished_outcome

CHAT, MODEL = "/v1/chat/completions", "stub"


@contextmanager
def clock(name: str, lines: int) -> Iterator[None]:
    """Print how long something took, and for how many lines in a second."""
    started = time.perf_counter()
    yield
    took = time.perf_counter() - started
    print(f"{name}: {took:.2f} s, {lines / took:,.0f} lines/s", flush=True)


class Bench:
    """A project with a model and a worker of its own."""

    def __init__(self, settings: Settings, sessions: SessionFactory) -> None:
        self.settings, self.sessions = settings, sessions
        with sessions.begin() as session:
            new = models.NewModel(MODEL, "stub:", 1024, {})
            self.model = models.register_model(session, new, models.PriceList())
            self.caller = Caller(projects.ensure_project(session, "bench"))
            worker = workers.NewWorker("engine", "here", 1, self.model.id)
            self.worker = workers.register_worker(session, worker)
        with sessions.begin() as session:
            workers.mark_ready(session, self.worker, "a worker", 64, Lane("stub"))

    def create(self, lines: int, different: int, dedupe: Dedupe) -> JobId:
        """A job that nobody has read, with so many lines, of which so many differ."""
        data = b"".join(_line(n, n % different) for n in range(lines))
        with self.sessions.begin() as session:
            upload = files.Upload("lines.jsonl", [data])
            file = files.create_file(session, self.caller.project_id, upload, len(data))
            new = NewJob(file.id, CHAT, "24h", b"\0" * 32, dedupe=dedupe)
            return jobs.create_job(session, self.caller, new).id

    def read(self, name: str, lines: int, different: int, dedupe: Dedupe) -> JobId:
        """Have a new job read."""
        job_id = self.create(lines, different, dedupe)
        with clock(name, lines):
            run_ingest(self.sessions, self.settings, job_id)
        return job_id

    def drop(self, job_id: JobId) -> None:
        with self.sessions.begin() as session:
            cancel_job(session, self.caller.project_id, job_id)

    def compute(self) -> None:
        """Let the stub answer whatever waits."""
        claim = leases.Claim(self.worker, self.model.id, 64, 60.0, holds=False)
        backend = StubBackend()
        while True:
            with self.sessions.begin() as session:
                held = leases.claim_shards(session, claim)
                items = [(lease, item) for lease in held for item in read_items(session, lease)]
            if not held:
                return
            for lease, item in items:
                backend.submit(backend.prepare(lease, item))
            while backend.unfinished:
                pack = [finished_outcome(outcome) for outcome in backend.step()]
                with self.sessions.begin() as session:
                    commit_results(session, self.worker, pack)

    def settle(self, name: str, job_id: JobId, copies: int) -> None:
        """Give all copies of a job their answers, and close it."""
        settled = 0
        with clock(name, copies):
            while some := run_copies(self.sessions, job_id):
                settled += some
        assert settled == copies, settled
        with self.sessions.begin() as session:
            close_job(session, job_id)


def _line(number: int, text: int) -> bytes:
    message = {"role": "user", "content": f"Tell me tale number {text}. " + "word " * 60}
    body = {"model": MODEL, "messages": [message], "temperature": 0, "max_tokens": 8}
    line = {"custom_id": f"n{number}", "method": "POST", "url": CHAT, "body": body}
    return json.dumps(line).encode() + b"\n"


def main() -> None:
    """Read, compute, settle, and do so again from what stands."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=50_000)
    lines = parser.parse_args().lines
    different = lines // 100
    with tempfile.TemporaryDirectory() as folder, EmbeddedServices(Path(folder)) as urls:
        migrate.upgrade(urls.database_url)
        sessions = create_session_factory(urls.database_url)
        bench = Bench(Settings(data_dir=Path(folder)), sessions)
        for dedupe in Dedupe:
            bench.drop(bench.read(f"reading different lines, {dedupe}", lines, lines, dedupe))
        first = bench.read("reading equal lines, project", lines, different, Dedupe.PROJECT)
        bench.compute()
        bench.settle("settling copies of the job", first, lines - different)
        again = bench.read("reading them again", lines, different, Dedupe.PROJECT)
        bench.settle("settling copies of the project", again, lines)


if __name__ == "__main__":
    main()
