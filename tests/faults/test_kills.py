"""Processes killed, stopped and flushed in the middle of work: every line still ends once."""

import os
import signal
import time

import psutil
import redis
from installation import Server, chat_line, eventually
from ledger import check_job
from openai.types import Batch
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Shard, Worker
from runner.db.session import SessionFactory
from runner.domain import ids
from runner.domain.ids import JobId
from runner.model_library import BUILTIN_MODEL
from runner.runtime import find_services

SLOW_STUB = "slow"


def submit(server: Server, content: bytes) -> str:
    with server.client() as client:
        file = client.files.create(file=content, purpose="batch")
        return client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        ).id


def look(server: Server, batch_id: str) -> Batch:
    with server.client() as client:
        return client.batches.retrieve(batch_id)


def completed(server: Server, batch_id: str) -> int:
    counts = look(server, batch_id).request_counts
    return counts.completed if counts else 0


def wait_until_completed(server: Server, batch_id: str, seconds: float = 120) -> JobId:
    eventually(lambda: look(server, batch_id).status == "completed", seconds)
    job_id = ids.decode(ids.JOB_PREFIX, batch_id)
    assert job_id is not None
    return JobId(job_id)


def stub_lines(count: int) -> bytes:
    return b"".join(chat_line(f"r{n}", SLOW_STUB, f"line {n}") for n in range(count))


def test_a_killed_engine_worker_costs_only_what_was_in_flight(
    real_server: Server, real_sessions: SessionFactory
) -> None:
    content = b"".join(
        chat_line(
            f"r{n}", BUILTIN_MODEL, f"Tell me about the number {n}.",
            max_tokens=3 if n % 2 else 60, temperature=0,
        )
        for n in range(12)
    )  # fmt: skip
    batch_id = submit(real_server, content)
    eventually(lambda: 0 < completed(real_server, batch_id) < 12, 120)
    os.kill(real_server.pid("engine-1"), signal.SIGKILL)
    job_id = wait_until_completed(real_server, batch_id, 200)
    with real_sessions() as session:
        check_job(session, job_id)
        retried = select(func.max(Shard.attempt)).where(Shard.job_id == job_id)
        assert session.scalar(retried) == 2
        reasons = set(session.scalars(select(Worker.end_reason)))
        assert "exited" in reasons  # reported by the supervisor, not waited for


def test_a_cpu_worker_killed_while_it_reads_a_file_loses_nothing(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    good, bad = stub_lines(150), b"".join(b"{%d}\n" % n for n in range(200_000))
    with stub_server.client() as client:
        file = client.files.create(file=bad + good, purpose="batch")
        batch_id = client.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            extra_body={"on_invalid": "skip"},
        ).id
    eventually(lambda: getattr(look(stub_server, batch_id), "phase", "") == "reading", 30)
    worker = psutil.Process(stub_server.pid("cpu"))
    for process in [*worker.children(recursive=True), worker]:
        process.kill()
    assert look(stub_server, batch_id).status == "validating"
    job_id = wait_until_completed(stub_server, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)


def test_a_flushed_broker_costs_seconds_and_no_line(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    urls = find_services(load_settings(stub_server.data_dir))
    with redis.Redis.from_url(urls.broker_url) as broker:
        broker.flushall()
        batch_id = submit(stub_server, stub_lines(200))
        broker.flushall()
        eventually(lambda: completed(stub_server, batch_id) > 0, 60)
        broker.flushall()
    job_id = wait_until_completed(stub_server, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)


def test_a_worker_stopped_past_its_lease_has_its_late_results_refused_and_counted(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    batch_id = submit(stub_server, stub_lines(600))
    eventually(lambda: completed(stub_server, batch_id) > 0, 60)
    pids = [stub_server.pid("engine-1"), stub_server.pid("engine-2")]
    job_id = ids.decode(ids.JOB_PREFIX, batch_id)

    def holder() -> int | None:
        holds = select(Worker.pid).join(Shard, Shard.worker_id == Worker.id)
        with stub_sessions() as session:
            found = session.scalars(holds.where(Shard.job_id == job_id)).all()
        return next((pid for pid in pids if pid in found), None)

    stopped = eventually(holder)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(5)
    os.kill(stopped, signal.SIGCONT)
    check_job_id = wait_until_completed(stub_server, batch_id)
    with stub_sessions() as session:
        check_job(session, check_job_id)
        stale = select(func.sum(Worker.stale_results)).where(Worker.pid == stopped)
        assert (session.scalar(stale) or 0) > 0
