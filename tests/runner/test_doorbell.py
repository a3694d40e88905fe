"""Rings follow the commit, once, and never a rollback."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from runner.db.session import SessionFactory
from runner.domain.rings import Bell, Ring
from runner.doorbell import connect_doorbell, ring


@pytest.fixture
def rings(session_factory: SessionFactory) -> list[Ring]:
    heard: list[Ring] = []
    connect_doorbell(session_factory, heard.append)
    return heard


def test_a_ring_is_sent_once_after_the_commit(
    session_factory: SessionFactory, rings: list[Ring]
) -> None:
    with session_factory.begin() as session:
        ring(session, Bell.WAKE)
        ring(session, Bell.WAKE)
        session.execute(text("SELECT 1"))
        assert rings == []
    assert rings == [Ring(Bell.WAKE)]
    with session_factory.begin() as session:
        session.execute(text("SELECT 1"))
    assert rings == [Ring(Bell.WAKE)]


def test_a_rollback_forgets_its_rings(session_factory: SessionFactory, rings: list[Ring]) -> None:
    with session_factory() as session:
        session.execute(text("SELECT 1"))
        ring(session, Bell.WAKE)
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    assert rings == []


def test_a_failed_transaction_rings_nobody(
    session_factory: SessionFactory, rings: list[Ring]
) -> None:
    with session_factory() as session:
        ring(session, Bell.WAKE)
        with pytest.raises(ProgrammingError):
            session.execute(text("SELECT no_such_column"))
    assert rings == []


def test_the_release_of_a_savepoint_is_no_commit(
    session_factory: SessionFactory, rings: list[Ring]
) -> None:
    with session_factory.begin() as session:
        with session.begin_nested():
            ring(session, Bell.WAKE)
            session.execute(text("SELECT 1"))
        assert rings == []
        with session.begin_nested():
            session.execute(text("SELECT 1"))
        assert rings == []
    assert rings == [Ring(Bell.WAKE)]


def test_a_savepoint_that_is_rolled_back_leaves_the_rings_of_its_transaction(
    session_factory: SessionFactory, rings: list[Ring]
) -> None:
    with session_factory.begin() as session:
        session.execute(text("SELECT 1"))
        ring(session, Bell.WAKE)
        with pytest.raises(ProgrammingError), session.begin_nested():
            session.execute(text("SELECT no_such_column"))
    assert rings == [Ring(Bell.WAKE)]


@pytest.mark.parametrize("inside", [True, False])
def test_a_rollback_forgets_rings_also_where_there_was_a_savepoint(
    session_factory: SessionFactory, rings: list[Ring], inside: bool
) -> None:
    with session_factory() as session:
        session.execute(text("SELECT 1"))
        ring(session, Bell.WAKE)
        nested = session.begin_nested()
        if not inside:
            nested.rollback()
        session.rollback()
        ring(session, Bell.CANCEL)
        session.execute(text("SELECT 1"))
        session.commit()
    assert rings == [Ring(Bell.CANCEL)]
