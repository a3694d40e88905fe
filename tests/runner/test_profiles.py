"""Orders for profiles: who may give one, who takes it, and what becomes of it."""

from uuid import UUID

import pytest
from sqlalchemy import func, text, update
from workshop import Workshop

from runner.db.models import AuditEntry, Profile
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import WorkerId, new_uuid
from runner.domain.rings import Bell, Ring
from runner.services import profiles
from runner.services.profiles import ProfileFailed
from runner.services.reconcile import keep_house


def ask(workshop: Workshop, worker_id: WorkerId, steps: int = 5, seconds: float = 60) -> UUID:
    with workshop.sessions.begin() as session:
        return profiles.ask(session, worker_id, steps, seconds)


def take(workshop: Workshop, worker_id: WorkerId) -> profiles.Order | None:
    with workshop.sessions.begin() as session:
        return profiles.take_order(session, worker_id)


def state(workshop: Workshop, order: UUID) -> str:
    with workshop.sessions.begin() as session:
        return profiles.state_of(session, order)


def age(workshop: Workshop, **columns: str) -> None:
    moved = {name: func.now() - text(f"interval '{by}'") for name, by in columns.items()}
    workshop.execute(update(Profile).values(moved))


def test_an_order_is_heard_and_taken_once_by_its_own_worker(workshop: Workshop) -> None:
    worker_id, other = workshop.make_worker(1), workshop.make_worker(2)
    order = ask(workshop, worker_id)
    assert Ring(Bell.PROFILE) in workshop.rings
    assert take(workshop, other) is None
    taken = take(workshop, worker_id)
    assert taken is not None
    assert (taken.id, taken.steps) == (order, 5)
    assert 0 < taken.seconds <= 60
    assert take(workshop, worker_id) is None
    assert state(workshop, order) == "taken"
    assert workshop.scalar(func.count(AuditEntry.id).select().where(
        AuditEntry.action == "profile.ask"
    )) == 1  # fmt: skip


def test_a_trace_leaves_the_database_when_it_is_fetched(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    order = ask(workshop, worker_id)
    take(workshop, worker_id)
    with workshop.sessions.begin() as session:
        profiles.note_begun(session, order)
    assert state(workshop, order) == "recording"
    with workshop.sessions.begin() as session:
        profiles.finish(session, order, b"trace", 4)
    assert state(workshop, order) == "done"
    with workshop.sessions.begin() as session:
        assert profiles.fetch(session, order) == (b"trace", 4)
    with pytest.raises(ProfileFailed, match="gone"):
        state(workshop, order)
    with workshop.sessions.begin() as session:  # nobody is left to tell, and no harm done
        profiles.finish(session, order, b"trace", 4)


def test_a_worker_is_profiled_once_at_a_time_and_only_when_it_is_ready(
    workshop: Workshop,
) -> None:
    worker_id = workshop.make_worker()
    first = ask(workshop, worker_id)
    with pytest.raises(StateConflict, match="already"):
        ask(workshop, worker_id)
    with workshop.sessions.begin() as session:
        profiles.fail(session, first, "It rained.")
    with pytest.raises(ProfileFailed, match="rained"):
        state(workshop, first)
    ask(workshop, worker_id)
    age(workshop, expires_at="1 second")
    assert take(workshop, worker_id) is None  # too late
    ask(workshop, worker_id)  # and in nobody's way


def test_what_cannot_be_profiled_is_refused_by_name(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    for steps in (0, profiles.MAX_STEPS + 1):
        with pytest.raises(InvalidRequest, match="1 to 100") as caught:
            ask(workshop, worker_id, steps)
        assert caught.value.param == "steps"
    with pytest.raises(NotFound, match="worker_"):
        ask(workshop, WorkerId(new_uuid()))
    workshop.report_dead(1)
    with pytest.raises(NotFound, match="lives"):
        ask(workshop, worker_id)


def test_the_end_of_a_worker_is_the_end_of_its_profile(workshop: Workshop) -> None:
    worker_id = workshop.make_worker(pid=7)
    order = ask(workshop, worker_id)
    take(workshop, worker_id)
    workshop.report_dead(7)
    with pytest.raises(ProfileFailed, match=r"gone \(exited\)"):
        state(workshop, order)


def test_the_house_drops_what_nobody_fetched(workshop: Workshop) -> None:
    old, new = workshop.make_worker(1), workshop.make_worker(2)
    ask(workshop, old)
    age(workshop, created_at="61 minutes")
    kept = ask(workshop, new)
    keep_house(workshop.sessions)
    assert [row.id for row in workshop.rows(Profile.__table__.select())] == [kept]
