"""Processes killed, stopped and flushed in the middle of work: every line still ends once."""

import os
import signal
from datetime import datetime
from uuid import UUID

import psutil
import redis
from fire import SLOW_STUB, Fire, job_id_of
from installation import Server, chat_line, eventually
from ledger import check_job
from openai.types import Batch
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from runner.config import load_settings
from runner.db.models import Shard, Worker
from runner.db.session import SessionFactory
from runner.domain.ids import JobId
from runner.model_library import BUILTIN_MODEL
from runner.runtime import find_services
from runner.services.recovery import requeue_leases_of


def submit(server: Server, content: bytes) -> str:
    with server.client() as client:
        file = client.files.create(file=content, purpose="batch")
        return client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        ).id


def look(server: Server, batch_id: str) -> Batch:
    return Fire(server).look(batch_id)


def completed(server: Server, batch_id: str) -> int:
    return Fire(server).completed(batch_id)


def wait_until_completed(server: Server, batch_id: str, seconds: float = 120) -> JobId:
    eventually(lambda: look(server, batch_id).status == "completed", seconds)
    return job_id_of(batch_id)


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
        for n in range(8)
    )  # fmt: skip
    batch_id = submit(real_server, content)
    eventually(lambda: 0 < completed(real_server, batch_id) < 8, 120)
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
    good, bad = stub_lines(150), b"".join(b"{%d}\n" % n for n in range(60_000))
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


def lock_leases_of(session: Session, job_id: JobId, pid: int) -> tuple[UUID, datetime] | None:
    """Lock what a process has leased of a job: to which worker, and when all of it has lapsed."""
    leases = select(Worker.id, Shard.lease_expires_at).join(Shard, Shard.worker_id == Worker.id)
    leases = leases.where(Shard.job_id == job_id, Worker.pid == pid).order_by(Shard.shard_no)
    locked = session.execute(leases.with_for_update(of=Shard)).all()
    if not locked:
        session.rollback()
        return None
    return locked[0].id, max(row.lease_expires_at for row in locked)


def both_wait(sessions: SessionFactory) -> bool:
    """Whether a heartbeat and a pack of results wait for their leases' locks."""
    query = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query ILIKE '%cardinality%FOR UPDATE%'"
    )
    with sessions() as session:
        return (session.scalar(text(query)) or 0) >= 2


def test_a_worker_stopped_past_its_lease_has_its_late_results_refused_and_counted(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    batch_id = submit(stub_server, stub_lines(200))
    job_id = job_id_of(batch_id)
    pid = stub_server.pid("engine-1")
    with stub_sessions() as session:
        # Once its results wait for our lock, it has some to bring when it goes on.
        worker_id, lapsed_at = eventually(lambda: lock_leases_of(session, job_id, pid))
        eventually(lambda: both_wait(stub_sessions))
        os.kill(pid, signal.SIGSTOP)
        try:
            clock = select(func.clock_timestamp())
            eventually(lambda: session.scalars(clock).one() > lapsed_at)
            assert requeue_leases_of(session, worker_id) > 0
            session.commit()
        finally:
            os.kill(pid, signal.SIGCONT)
    wait_until_completed(stub_server, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)
        stale = select(Worker.stale_results).where(Worker.id == worker_id)
        assert (session.scalar(stale) or 0) > 0
