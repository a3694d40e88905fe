"""A schedule whose planned times come while one process after another is killed."""

from datetime import datetime

from installation import Server, eventually
from night import MINUTE, Night, flush, kill
from sqlalchemy import select

from runner.db.models import Job, Shard, Worker
from runner.db.session import SessionFactory


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
    eventually(lambda: has_in_hand(stub_sessions, stub_server.pid("engine-2")))
    kill(stub_server, "engine-2")
    assert night.end()[0].planned_at == first == night.first - 3 * MINUTE


def has_in_hand(sessions: SessionFactory, pid: int) -> bool:
    """Whether an engine worker has lines of a schedule's job."""
    held = select(Shard.job_id).join(Worker, Worker.id == Shard.worker_id)
    held = held.join(Job, Job.id == Shard.job_id)
    held = held.where(Worker.pid == pid, Worker.ended_at.is_(None), Job.schedule_id.is_not(None))
    with sessions() as session:
        return bool(session.scalar(select(held.exists())))
