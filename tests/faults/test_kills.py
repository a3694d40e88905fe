"""Processes killed, stopped and flushed in the middle of work: every line still ends once."""

from datetime import datetime
from uuid import UUID

import psutil
from fire import Fire, attempts, job_id_of, slow_line, stopped
from installation import Server, chat_line, eventually
from ledger import check_job
from night import MINUTE, Night, flush, kill
from sqlalchemy import func, select, text, update
from sqlalchemy.orm import Session

from runner.db.models import Job, Shard, Worker
from runner.db.session import SessionFactory
from runner.domain.ids import JobId
from runner.domain.states import ShardState
from runner.model_library import BUILTIN_MODEL
from runner.services.recovery import requeue_expired_leases


def wait_until_completed(fire: Fire, batch_id: str, seconds: float = 120) -> JobId:
    eventually(lambda: fire.look(batch_id).status == "completed", seconds)
    return job_id_of(batch_id)


def waiting_for_locks(sessions: SessionFactory, pattern: str) -> int:
    """How many statements of that pattern wait for somebody's lock."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query ILIKE :pattern"
    )
    with sessions() as session:
        return session.scalar(query, {"pattern": pattern}) or 0


def short_or_long(number: int) -> bytes:
    return chat_line(
        f"r{number}", BUILTIN_MODEL, f"Tell me about the number {number}.",
        max_tokens=3 if number % 2 else 60, temperature=0,
    )  # fmt: skip


def test_a_killed_engine_worker_costs_only_what_was_in_flight(
    real_server: Server, real_sessions: SessionFactory
) -> None:
    fire = Fire(real_server, 8, short_or_long)

    def is_killed(batch_id: str) -> bool:
        """Kill it between the first line and the last: it stands still while we make sure."""
        if not fire.completed(batch_id):
            return False
        worker = fire.child("engine-1")
        with stopped(worker):
            if fire.completed(batch_id) == fire.lines:
                return False
            worker.kill()
        return True

    batch_id, _ = fire.catch(is_killed)
    job_id = wait_until_completed(fire, batch_id, 150)
    assert attempts(real_sessions, batch_id) == 2
    with real_sessions() as session:
        check_job(session, job_id)
        reasons = set(session.scalars(select(Worker.end_reason)))
        assert "exited" in reasons  # reported by the supervisor, not waited for


def test_a_cpu_worker_killed_while_it_reads_a_file_loses_nothing(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    fire = Fire(stub_server)
    good = b"".join(map(slow_line, range(150)))
    bad = b"".join(b"{%d}\n" % n for n in range(6_000))  # so many that it writes in between
    with stub_sessions() as session:
        session.execute(text("LOCK TABLE work_items IN SHARE MODE"))  # it gets no further than that
        with stub_server.client() as client:
            file = client.files.create(file=good + bad, purpose="batch")
            batch_id = client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                extra_body={"on_invalid": "skip"},
            ).id
        eventually(lambda: waiting_for_locks(stub_sessions, "COPY%work_items%"))
        assert getattr(fire.look(batch_id), "phase", "") == "reading"
        kill(stub_server, "cpu")
        assert fire.look(batch_id).status == "validating"
        session.rollback()
    job_id = wait_until_completed(fire, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)


def test_a_flushed_broker_costs_seconds_and_no_line(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    fire = Fire(stub_server)
    flush(stub_server)
    batch_id = fire.submit()
    flush(stub_server)
    eventually(lambda: fire.completed(batch_id))
    flush(stub_server)
    job_id = wait_until_completed(fire, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)


def lock_leases(session: Session, job_id: JobId) -> tuple[UUID, int] | None:
    """Lock what one of the workers has leased of a job: its id and that of its process."""
    leased = (Shard.job_id == job_id, Shard.state == ShardState.LEASED)
    some = select(Worker.id, Worker.pid).join(Shard, Shard.worker_id == Worker.id).where(*leased)
    worker = session.execute(some.order_by(Worker.id).limit(1)).one_or_none()
    if worker is not None:
        mine = select(Shard.shard_no).where(*leased, Shard.worker_id == worker.id)
        if session.scalars(mine.order_by(Shard.shard_no).with_for_update()).all():
            return worker.id, worker.pid
    session.rollback()
    return None


def test_a_worker_stopped_past_its_lease_has_its_late_results_refused_and_counted(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    fire = Fire(stub_server, lines=200)
    with stub_sessions() as session:
        batch_id, (worker_id, pid) = fire.catch(
            lambda batch_id: lock_leases(session, job_id_of(batch_id))
        )
        # Once a heartbeat and a pack of results wait for our lock, it has some to bring when it
        # goes on.
        waiting = "%cardinality%FOR UPDATE%"
        eventually(lambda: waiting_for_locks(stub_sessions, waiting) >= 2)
        with stopped(psutil.Process(pid)):
            lapsed = func.now() - text("interval '1 second'")
            mine = update(Shard).where(Shard.worker_id == worker_id)
            session.execute(mine.values(lease_expires_at=lapsed))
            assert requeue_expired_leases(session) > 0
            session.commit()
    job_id = wait_until_completed(fire, batch_id)
    with stub_sessions() as session:
        check_job(session, job_id)
        stale = select(Worker.stale_results).where(Worker.id == worker_id)
        assert (session.scalar(stale) or 0) > 0


def test_each_planned_time_is_one_finished_job_whoever_is_killed(
    stub_server: Server, stub_sessions: SessionFactory
) -> None:
    night = Night.begin(stub_server, stub_sessions, lines=40)

    def is_started(planned_at: datetime) -> bool:
        return night.state(planned_at) == "started"

    kill(stub_server, "beat")
    unwatched = night.come(0)
    eventually(lambda: is_started(unwatched))

    unheard = night.come(1)
    eventually(lambda: night.state(unheard))
    flush(stub_server)
    eventually(lambda: is_started(unheard))

    unread = night.come(2)
    eventually(lambda: night.state(unread))
    kill(stub_server, "cpu")
    eventually(lambda: is_started(unread))

    first = night.come(3)
    eventually(lambda: night.state(first))
    kill(stub_server, eventually(lambda: busy_worker(stub_server, stub_sessions)))
    assert night.end()[0].planned_at == first == night.first - 3 * MINUTE


def busy_worker(server: Server, sessions: SessionFactory) -> str | None:
    """The engine worker that has lines of a schedule's job in hand."""
    held = select(Worker.pid).join(Shard, Worker.id == Shard.worker_id)
    held = held.join(Job, Job.id == Shard.job_id)
    held = held.where(Worker.ended_at.is_(None), Job.schedule_id.is_not(None))
    with sessions() as session:
        pids = session.scalars(held.where(Shard.state == ShardState.LEASED)).all()
    names = ("engine-1", "engine-2")
    return next((name for name in names if server.pid(name) in pids), None)
