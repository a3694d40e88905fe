"""Outages of the database as processes see them: bounded, told apart, and survived."""

import socket
from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.orm import Session
from workshop import Workshop

from runner.db.models import Shard, Worker
from runner.db.outages import outage_of
from runner.db.session import OUTAGES, create_session_factory
from runner.domain.errors import StorageFull, Unavailable
from runner.services import leases
from runner.services.ingest import run_ingest
from runner.services.reconcile import Contact, reconcile
from runner.worker.patience import Patience, persist


def server_of(session: Session) -> int:
    """The process that serves a session's connection, without a statement that could be late."""
    driver = session.connection().connection.driver_connection
    assert isinstance(driver, psycopg.Connection)
    return driver.info.backend_pid


def test_the_server_gives_a_statement_up_and_the_connection_serves_on(database_url: str) -> None:
    sessions = create_session_factory(database_url, patience_seconds=1.0)
    with sessions() as session:
        before = server_of(session)
    with sessions() as session, pytest.raises(OperationalError, match="statement timeout"):
        session.execute(text("SELECT pg_sleep(60)"))
    with sessions() as session:
        assert server_of(session) == before
    sessions.kw["bind"].dispose()


def test_a_server_that_answers_nothing_is_given_up_too(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.db.connection.MARGIN_SECONDS", 0.0)
    sessions = create_session_factory(database_url, patience_seconds=1.0)
    with sessions() as session:
        before = server_of(session)
        # As deaf as a server that hangs: its own bound does not help.
        session.execute(text("SET statement_timeout = 0"))
        with pytest.raises(OperationalError, match="no answer within"):
            session.execute(text("SELECT pg_sleep(60)"))
    with sessions() as session:
        assert server_of(session) != before
    sessions.kw["bind"].dispose()


@pytest.fixture
def silent_address() -> Iterator[str]:
    """A port that takes connections and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_silent_address_is_no_place_to_hang(
    silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runner.db.session._CONNECT_SECONDS", 2)
    sessions = create_session_factory(f"postgresql+psycopg://nobody@{silent_address}/nothing")
    with sessions() as session, pytest.raises(OperationalError) as caught:
        session.execute(text("SELECT 1"))
    assert isinstance(outage_of(caught.value), Unavailable)


def test_a_demoted_server_is_an_outage_and_another_connection_is_tried(database_url: str) -> None:
    sessions = create_session_factory(database_url)
    with sessions() as session:
        before = session.scalar(text("SELECT pg_backend_pid()"))
        session.execute(text("SET TRANSACTION READ ONLY"))
        with pytest.raises(OUTAGES) as caught:
            session.execute(text("CREATE TABLE never (a int)"))
    assert isinstance(outage_of(caught.value), Unavailable)
    with sessions() as session:
        assert session.scalar(text("SELECT pg_backend_pid()")) != before
    sessions.kw["bind"].dispose()


def test_a_full_disk_is_told_from_other_outages_and_from_faults_of_ours() -> None:
    full = OperationalError("INSERT", None, psycopg.errors.DiskFull("no space"))
    assert isinstance(outage_of(full), StorageFull)
    away = OperationalError("INSERT", None, psycopg.errors.AdminShutdown("restart"))
    assert isinstance(outage_of(away), Unavailable)
    ours = ProgrammingError("SELEC", None, psycopg.errors.SyntaxError("SELEC"))
    assert outage_of(ours) is None


def test_a_transaction_is_repeated_until_the_database_takes_it_or_nobody_wants_it(
    workshop: Workshop,
) -> None:
    failures = [1, 1]

    def transaction(_session: object) -> str:
        if failures:
            failures.pop()
            raise OperationalError("INSERT", None, Exception("away"))
        return "done"

    patience = Patience("A test", "test_failed")
    assert persist(workshop.sessions, transaction, patience) == "done"
    assert not patience.is_tried
    failures[:] = [1]
    with pytest.raises(OperationalError):
        persist(workshop.sessions, transaction, patience, lambda: True)
    assert patience.is_tried


def test_a_full_disk_does_not_use_up_the_reads_of_a_file(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = workshop.make_job(3, ingested=False)

    def fail(*_: object) -> None:
        raise OperationalError("COPY", None, psycopg.errors.DiskFull("no space"))

    with monkeypatch.context() as patch:
        patch.setattr("runner.services.ingest.copy_rows", fail)
        for _ in range(25):
            with pytest.raises(OperationalError):
                run_ingest(workshop.sessions, workshop.settings, job_id)
    assert run_ingest(workshop.sessions, workshop.settings, job_id)
    assert workshop.job(job_id).state == "in_progress"


class Clock:
    """A monotonic clock that is set by hand."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


def test_who_was_cut_off_waits_before_it_calls_others_silent(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("runner.services.reconcile.time", clock)
    settings = workshop.settings
    contact = Contact(settings)
    workshop.make_job(4)
    worker = workshop.make_worker()
    (lease,) = workshop.claim(worker)
    workshop.execute(update(Shard).values(lease_expires_at=text("now() - interval '1 hour'")))
    workshop.execute(update(Worker).values(last_seen_at=text("now() - interval '1 hour'")))

    def freed() -> bool:
        reconcile(workshop.sessions, settings, contact)
        dead = workshop.scalar(select(Worker.state)) == "dead"
        is_open = workshop.scalar(select(Shard.state)) == "open"
        assert dead == is_open
        return dead

    settled = settings.heartbeat_seconds + 5
    for _ in range(int(settled / settings.tick_seconds)):
        assert not freed()  # just started
        clock.now += settings.tick_seconds
    clock.now += settings.lease_seconds  # an outage
    assert not freed()
    with workshop.sessions.begin() as session:
        leases.revive_leases(session, worker, [lease.key], settings.lease_seconds)
        assert leases.lock_live(session, worker, {lease.key}) == {lease.key: 4}
    workshop.execute(update(Shard).values(lease_expires_at=text("now() - interval '1 hour'")))
    while not freed():  # and now it is believed to be gone
        clock.now += settings.tick_seconds
    with workshop.sessions.begin() as session:
        leases.revive_leases(session, worker, [lease.key], settings.lease_seconds)
        assert leases.lock_live(session, worker, {lease.key}) == {}
