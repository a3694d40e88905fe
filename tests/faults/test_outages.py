"""What we stand on goes away under load, hangs, and comes back: no line is lost or billed twice."""

import time
from collections.abc import Callable

import pytest
from fire import LEASE_SECONDS, Answers, Fire, Reply, attempts, frozen, stopped
from installation import Server, eventually
from sqlalchemy import select

from runner.db.models import Worker
from runner.db.session import SessionFactory


@pytest.fixture
def fire(stub_server: Server, stub_sessions: SessionFactory) -> Fire:
    """The installation, once it has recovered from the test before."""
    fire = Fire(stub_server)
    eventually(lambda: fire.is_whole() and has_both_workers(stub_sessions))
    return fire


def has_both_workers(sessions: SessionFactory) -> bool:
    """Whether two workers have their model, and no other is told to live."""
    with sessions() as session:
        states = session.scalars(select(Worker.state).where(Worker.ended_at.is_(None))).all()
    return sorted(states) == ["ready", "ready"]


@pytest.fixture
def check(fire: Fire, stub_sessions: SessionFactory, quiet: Answers) -> Callable[[str], None]:
    """Waits for the end of a job; every invariant holds and every answer is that of a quiet run."""

    def check(batch_id: str) -> None:
        assert fire.finish(stub_sessions, batch_id) == quiet

    return check


@pytest.fixture(scope="module")
def quiet_answers() -> dict[int, Answers]:
    return {}


@pytest.fixture
def quiet(fire: Fire, stub_sessions: SessionFactory, quiet_answers: dict[int, Answers]) -> Answers:
    """The answers of an undisturbed job, made once."""
    if fire.lines not in quiet_answers:
        quiet_answers[fire.lines] = fire.finish(stub_sessions, fire.submit())
    return quiet_answers[fire.lines]


def test_each_process_of_the_house_may_be_killed(fire: Fire, check: Callable[[str], None]) -> None:
    before = fire.restarts()
    batch_id = fire.begin()
    house = {name: fire.child(name) for name in ("web", "beat", "cpu")}
    # One of those that web and cpu forked is replaced by its parent; then the parents go as well.
    for name in ("web", "cpu"):
        eventually(house[name].children)[0].kill()
    eventually(lambda: fire.get("/readyz").status == 200)
    for process in house.values():
        process.kill()

    def all_back() -> bool:
        after = fire.restarts()
        return all(after[name] == before[name] + 1 for name in house)

    eventually(all_back)
    eventually(lambda: fire.get("/readyz").status == 200)
    check(batch_id)
    check(fire.submit())


def refusal_of(fire: Fire) -> Reply:
    """The first answer that is not the usual one."""

    def refused() -> Reply | None:
        answer = fire.get("/v1/batches")
        return None if answer.status == 200 else answer

    return eventually(refused)


def expect_unavailable(answer: Reply) -> None:
    assert answer.status == 503, answer.body
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    error = answer.json()["error"]
    assert (error["type"], error["code"]) == ("server_error", "unavailable")
    assert "try again" in error["message"]


def test_a_database_that_crashes_under_load_costs_no_line_and_no_process(
    fire: Fire, check: Callable[[str], None], stub_sessions: SessionFactory
) -> None:
    before = fire.restarts()
    batch_id = fire.begin()
    for _ in range(2):
        with stopped(fire.supervisor()):  # it would be back before we ask
            fire.service("postgres").kill()
            expect_unavailable(refusal_of(fire))
            assert fire.get("/livez").status == 200
        eventually(lambda: fire.get("/readyz").status == 200)
    check(batch_id)
    assert attempts(stub_sessions, batch_id) == 1
    assert fire.restarts() == before
    assert has_both_workers(stub_sessions)


def test_a_database_that_hangs_is_told_of_and_nothing_hangs_with_it(
    fire: Fire, check: Callable[[str], None], stub_sessions: SessionFactory
) -> None:
    before = fire.restarts()
    batch_id = fire.begin()
    with frozen(fire.service("postgres")):
        lapsed_at = time.monotonic() + LEASE_SECONDS
        expect_unavailable(fire.get("/v1/batches"))
        assert fire.get("/livez").status == 200
        assert fire.get("/readyz").status == 503
        time.sleep(max(0.0, lapsed_at - time.monotonic()))  # and every lease with it
    eventually(lambda: fire.get("/readyz").status == 200)
    check(batch_id)
    assert attempts(stub_sessions, batch_id) == 1
    assert fire.restarts() == before


def test_without_its_broker_the_house_works_on_and_takes_work(
    fire: Fire, check: Callable[[str], None]
) -> None:
    batch_id = fire.begin()
    with frozen(fire.service("valkey")):
        another = fire.submit()
        check(batch_id)
        check(another)
    fire.service("valkey").kill()
    check(fire.submit())


def test_an_engine_worker_asked_to_end_under_load_ends_in_order_and_costs_no_attempt(
    fire: Fire, check: Callable[[str], None], stub_sessions: SessionFactory
) -> None:
    batch_id = fire.begin()
    worker_process = fire.child("engine-1")
    worker_process.terminate()
    check(batch_id)
    assert attempts(stub_sessions, batch_id) == 1
    log = (fire.server.data_dir / "logs" / "engine-1.log").read_text()
    assert "The worker cannot go on" not in log
    with stub_sessions() as session:
        worker = session.scalars(select(Worker).where(Worker.pid == worker_process.pid)).one()
    assert (worker.state, worker.end_reason) == ("ended", "drained")
