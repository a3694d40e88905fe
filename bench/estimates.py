"""How fast a job's prompts are counted, and whether the count is that of the run.

``python bench/estimates.py --model FOLDER --lines 50000`` starts a database in a temporary folder,
hands in a file of lines of about 300 tokens, reads it, and has processes count it; it prints what
was seen as JSON. ``--megabytes 200`` makes the file so large instead. ``--run`` then runs every
line through workers whose stub answers, but whose prompts are made by the worker's own path with
the model's tokenizer, and compares what was billed with what was counted. ``--engine 100`` lets the
engine itself run so many of the lines.
"""

import argparse
import json
import multiprocessing
import os
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import func, select

from runner.config import Settings
from runner.db import migrate
from runner.db.models import Job, Shard, ShardCount
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.counts import LineKind
from runner.domain.ids import ModelId, ProjectId
from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease
from runner.embedded import EmbeddedServices
from runner.inference import open_counter
from runner.inference.backend import Task
from runner.inference.counters import Counters
from runner.inference.local.prompts import LocalPrompts
from runner.inference.model_folder import inspect_folder
from runner.inference.prompts import tokenise
from runner.inference.requests import parse_request
from runner.inference.stub import StubBackend
from runner.services import files, jobs, keys, leases, models, projects, workers
from runner.services.closing import close_if_drained, close_job
from runner.services.counting import run_count
from runner.services.ingest import run_ingest
from runner.services.items import read_items
from runner.services.jobs import NewJob
from runner.services.results import commit_results
from runner.worker.lines import finished_outcome

MODEL = "counted"
CHAT = "/v1/chat/completions"
_WORDS = (
    *("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by"),
    *("on", "not", "he", "this", "are", "at", "from", "his", "but", "an", "they", "which", "or"),
    *("harbour", "lantern", "1987", "quietly", "São", "Paulo,", "überall:", "naïve;", "weather"),
    *("report", "--", "42.5", "%", "would", "have", "been", "their", "more", "東京", "who", "will"),
)
_SHARED = "You label letters to a newspaper. Answer with one word: praise, complaint or question. "


def input_lines() -> Iterator[bytes]:
    """Chat lines of about 300 tokens: one beginning for all, then words of their own."""
    draw = random.Random(7)
    number = 0
    while True:
        text = " ".join(draw.choices(_WORDS, k=draw.randint(120, 220)))
        messages = [
            {"role": "system", "content": _SHARED * 3},
            {"role": "user", "content": text},
        ]
        body = {"model": MODEL, "messages": messages, "max_tokens": 8}
        line = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT, "body": body}
        yield json.dumps(line, ensure_ascii=False).encode() + b"\n"
        number += 1


def chosen_lines(options: argparse.Namespace) -> Iterator[bytes]:
    """The lines of the file, by their number or by its size."""
    size = 0
    for number, line in enumerate(input_lines()):
        if size >= options.megabytes * 10**6 if options.megabytes else number == options.lines:
            return
        size += len(line)
        yield line


class TokenisingStub(StubBackend):
    """The stub's answers to prompts made by a worker's own path with a real tokenizer."""

    def __init__(self, folder: Path, context: int) -> None:
        super().__init__()
        self._prompts = LocalPrompts(folder, context)

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        request = parse_request(item.data, lease, item.idx)
        line = tokenise(request, self._prompts.tokens(request), self._prompts.context)
        return Task.of(lease, item, line)


def count_all(database_url: str, settings: Settings, model: Path, job_id: UUID, ready: Any) -> None:  # noqa: ANN401
    """One process that counts until nothing is left, once all have loaded the tokenizer."""
    sessions = create_session_factory(database_url)
    counters = Counters()
    counters.open(str(model), inspect_folder(model).context_length)
    ready.wait()
    open_counter = counters.open
    while run_count(sessions, settings, open_counter, job_id):
        pass


def run_all(database_url: str, folder: Path, context: int, model_id: ModelId, ready: Any) -> None:  # noqa: ANN401
    """One process that runs until nothing is left."""
    sessions, backend = create_session_factory(database_url), TokenisingStub(folder, context)
    ready.wait()
    with sessions.begin() as session:
        new = workers.NewWorker("engine", "bench", os.getpid(), model_id)
        worker_id = workers.register_worker(session, new)
        workers.mark_ready(session, worker_id, "bench", backend.rows, Lane("stub"))
    claim = leases.Claim(worker_id, model_id, 8, 600.0, holds=False)
    while True:
        with sessions.begin() as session:
            held = leases.claim_shards(session, claim)
        if not held:
            return
        for lease in held:
            with sessions() as session:
                items = read_items(session, lease)
            for item in items:
                backend.submit(backend.prepare(lease, item))
            pack = []
            while backend.unfinished:
                pack += [finished_outcome(outcome) for outcome in backend.step()]
            with sessions.begin() as session:
                commit_results(session, worker_id, pack)


def in_processes(count: int, target: partial[None]) -> float:
    """Seconds that some processes take together, from when all of them are ready."""
    spawn = multiprocessing.get_context("spawn")
    ready = spawn.Barrier(count + 1)
    processes = [
        spawn.Process(target=target.func, args=(*target.args, ready)) for _ in range(count)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return time.perf_counter() - started


def make_job(sessions: SessionFactory, settings: Settings, options: argparse.Namespace) -> Any:  # noqa: ANN401
    """A model, and a job that was read; with the seconds and bytes that took."""
    context = inspect_folder(options.model).context_length
    with sessions.begin() as session:
        new = models.NewModel(MODEL, str(options.model), context, {})
        model_id = models.register_model(session, new, models.PriceList()).id
        caller = keys.Caller(projects.ensure_project(session, "bench"))
        upload = files.Upload("bench.jsonl", chosen_lines(options))
        stored = files.create_file(session, caller.project_id, upload, 1 << 40)
        job = NewJob(stored.id, CHAT, "24h", b"\0" * 32)
        job_id = jobs.create_job(session, caller, job).id
    started = time.perf_counter()
    assert run_ingest(sessions, settings, job_id)
    seen = {"bytes": stored.bytes, "ingest_seconds": round(time.perf_counter() - started, 2)}
    return job_id, model_id, context, seen


def by_the_engine(options: argparse.Namespace, context: int) -> dict[str, Any]:
    """Input tokens of some lines as the engine has them, beside their count."""
    from runner.inference.local.backend import LocalBackend

    lines = [
        ItemInput(n, str(n), line.replace(b'"max_tokens": 8', b'"max_tokens": 1').rstrip())
        for n, line in enumerate(islice(input_lines(), options.engine))
    ]
    counted = open_counter(str(options.model), context).count(LineKind(CHAT), lines)
    backend = LocalBackend(options.model, Settings(data_dir=options.model.parent))
    lease = _lease()
    for item in lines:
        backend.submit(backend.prepare(lease, item))
    prompts = cached = 0
    while backend.unfinished:
        for outcome in backend.step():
            prompts += outcome.metrics.prompt_tokens
            cached += outcome.metrics.cached_tokens
    return {
        "engine_lines": len(lines),
        "engine_input_tokens": prompts,
        "engine_counted_tokens": counted.input_tokens,
        "engine_cached_tokens": cached,
        "engine_expected_cached": counted.cached_tokens,
    }


def _lease() -> Lease:
    from runner.domain.ids import FileId, JobId, PriceId, new_uuid
    from runner.domain.leases import ShardKey
    from runner.domain.pricing import Price

    return Lease(
        key=ShardKey(JobId(new_uuid()), 0, 1),
        attempt=1,
        suspect=False,
        priority=0,
        project_id=ProjectId(new_uuid()),
        api_key_id=None,
        model_id=ModelId(new_uuid()),
        price=Price(PriceId(new_uuid()), 0, 0, 0, 0),
        endpoint=CHAT,
        input_file_id=FileId(new_uuid()),
        idx=(),
    )


def measured(urls: Any, folder: Path, options: argparse.Namespace) -> dict[str, Any]:  # noqa: ANN401
    """All figures of one job."""
    migrate.upgrade(urls.database_url)
    sessions = create_session_factory(urls.database_url)
    settings = Settings(data_dir=folder)
    job_id, model_id, context, seen = make_job(sessions, settings, options)
    work = partial(count_all, urls.database_url, settings, options.model, job_id)
    seconds = in_processes(options.workers, work)
    with sessions() as session:
        given = jobs.get_job(session, _project(session, job_id), job_id).estimate
        assert given is not None
        assert given.is_counted
        query = select(func.count()).select_from(ShardCount)
        seen |= {
            "lines": given.given.lines,
            "shards": session.scalar(query),
            "input_tokens": given.given.input_tokens,
            "tokens_per_line": round(given.given.input_tokens / given.given.lines, 1),
            "shared_tokens": given.given.cached_tokens,
            "longest": given.given.longest,
            "workers": options.workers,
            "count_seconds": round(seconds, 2),
            "lines_per_second": round(given.given.lines / seconds),
            "tokens_per_second": round(given.given.input_tokens / seconds),
        }
    if options.run:
        seen |= run_and_compare(sessions, urls.database_url, options, (job_id, model_id, context))
    if options.engine:
        seen |= by_the_engine(options, context)
    return seen


def run_and_compare(
    sessions: SessionFactory, url: str, options: argparse.Namespace, job: tuple[Any, ModelId, int]
) -> dict[str, Any]:
    """Run every line and tell what was billed, beside what was counted."""
    job_id, model_id, context = job
    run = partial(run_all, url, options.model, context, model_id)
    seconds = in_processes(options.workers, run)
    with sessions.begin() as session:
        close_if_drained(session, job_id)
    with sessions.begin() as session:
        assert close_job(session, job_id)
    with sessions() as session:
        record = jobs.get_job(session, _project(session, job_id), job_id).estimate
        shards = session.execute(
            select(func.count())
            .select_from(Shard)
            .join(
                ShardCount,
                (ShardCount.job_id == Shard.job_id) & (ShardCount.shard_no == Shard.shard_no),
            )
            .where(Shard.prompt_tokens != ShardCount.input_tokens)
        ).scalar_one()
    assert record is not None
    assert record.actual is not None
    return {
        "run_seconds": round(seconds, 1),
        "billed_input_tokens": record.actual.input_tokens,
        "is_equal": record.actual.input_tokens == record.given.input_tokens,
        "shards_that_differ": shards,
    }


def _project(session: Any, job_id: UUID) -> ProjectId:  # noqa: ANN401
    return ProjectId(session.get_one(Job, job_id).project_id)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--megabytes", type=float, default=0.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--engine", type=int, default=0)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        EmbeddedServices(Path(folder), fast=True) as urls,
    ):
        print(json.dumps(measured(urls, Path(folder), options), indent=2))


if __name__ == "__main__":
    main()
