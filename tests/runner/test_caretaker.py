"""A CPU worker that hears of nothing looks by itself, and one that hears leaves it at that."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from patience import PATIENCE, wait_until
from sqlalchemy import select
from workshop import Workshop

from runner.caretaker import Caretaker
from runner.config import Settings
from runner.db.models import Retention
from runner.db.session import create_session_factory
from runner.domain.rings import Bell, Ring
from runner.services.closing import close_job
from runner.services.ingest import run_ingest
from runner.services.retention_rule import MOST_DAYS, set_rule

MakeCaretaker = Callable[[Callable[[Ring], None]], Caretaker]


@pytest.fixture
def make_caretaker(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCaretaker]:
    """Makes a caretaker with quick ticks; it is stopped at the end.

    Its leases are as long as ever, so that no worker falls silent while the machine stands still.
    """
    monkeypatch.setattr(Settings, "tick_seconds", 0.05)
    settings = workshop.settings
    alone = create_session_factory(str(settings.database_url), pool_size=1)
    made: list[Caretaker] = []

    def make_caretaker(answer: Callable[[Ring], None]) -> Caretaker:
        made.append(Caretaker(settings, workshop.sessions, alone, answer))
        return made[-1]

    yield make_caretaker
    for caretaker in made:
        caretaker.stop(PATIENCE)
    alone.kw["bind"].dispose()


def test_without_any_message_files_are_read_jobs_closed_and_house_is_kept(
    workshop: Workshop, make_caretaker: MakeCaretaker
) -> None:
    def answer(ring: Ring) -> None:
        if ring.bell is Bell.INGEST and ring.job_id:
            run_ingest(workshop.sessions, workshop.settings, ring.job_id)
        elif ring.bell is Bell.FINALISE and ring.job_id:
            with workshop.sessions.begin() as session:
                close_job(session, ring.job_id)

    job_id = workshop.make_job(5, ingested=False)
    with workshop.sessions.begin() as session:
        set_rule(session, MOST_DAYS)
    make_caretaker(answer).start()
    wait_until(lambda: workshop.job(job_id).state == "in_progress")
    worker = workshop.make_worker()
    while held := workshop.claim(worker, shards=5):
        workshop.run(worker, held)
    wait_until(lambda: workshop.job(job_id).state == "completed")
    wait_until(lambda: workshop.scalar(select(Retention.applied_at)))


def test_a_look_that_fails_is_not_the_last(
    workshop: Workshop, make_caretaker: MakeCaretaker, caplog: pytest.LogCaptureFixture
) -> None:
    answered: list[Ring] = []

    def answer(ring: Ring) -> None:
        answered.append(ring)
        raise ValueError("a job that cannot be read")

    workshop.make_job(1, ingested=False)
    make_caretaker(answer).start()
    wait_until(lambda: len(answered) >= 2)
    assert "A look failed" in caplog.text


def test_while_messages_come_nothing_is_done_twice(
    workshop: Workshop, make_caretaker: MakeCaretaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Ring] = []
    looks: list[object] = []
    working, done = threading.Event(), threading.Event()

    def answer(ring: Ring) -> None:
        answered.append(ring)
        working.set()
        assert done.wait(PATIENCE)

    caretaker = make_caretaker(answer)
    ring = Ring(Bell.INGEST, workshop.make_job(1, ingested=False))
    # A long message is worked at: there is a broker, though no tick can come through.
    thread = threading.Thread(target=caretaker.answer, args=(ring,))
    thread.start()
    assert working.wait(PATIENCE)
    with monkeypatch.context() as patch:
        patch.setattr("runner.caretaker.reconcile", lambda *_: looks.append(ring))
        caretaker.start()
        time.sleep(0.5)  # ten ticks
        assert looks == []
    done.set()
    thread.join()
    wait_until(lambda: len(answered) >= 2)
    assert answered[1] == ring
