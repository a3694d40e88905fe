"""Which model a worker should have, and that two workers do not go for the same work."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, update
from workshop import Workshop, make_item

from runner.db.models import Worker
from runner.domain.ids import ModelId, WorkerId
from runner.domain.residency import Demand, Residency, first_model, next_model
from runner.services.drains import drain_worker, list_workers
from runner.services.models import ModelRecord
from runner.services.pausing import pause_job
from runner.services.residency import Seat, change_seat, plan_switch, take_seat

OWN, OTHER, THIRD = (ModelId(UUID(int=number)) for number in (1, 2, 3))


def demand(
    model_id: ModelId, rank: int, workers: int = 0, seconds: float = 100.0, failed: bool = False
) -> Demand:
    return Demand(model_id, rank, workers, seconds, failed)


def chosen(
    *demands: Demand, seconds: float = 90.0, load: float = 4.0, idle: float | None = None
) -> ModelId | None:
    return next_model(Residency(OWN, seconds, load, idle), demands)


def test_a_worker_stays_a_minute_with_a_model_that_has_work_then_the_next_turn_counts() -> None:
    waits = (demand(OTHER, 0), demand(OWN, 1))
    assert chosen(*waits, seconds=59) is None
    assert chosen(*waits, seconds=61) == OTHER
    assert chosen(demand(OWN, 0), demand(OTHER, 1), seconds=1e6) is None


def test_a_model_that_loads_for_long_stays_for_five_times_as_long() -> None:
    waits = (demand(OTHER, 0), demand(OWN, 1))
    assert chosen(*waits, seconds=99, load=20) is None
    assert chosen(*waits, seconds=101, load=20) == OTHER


def test_out_of_work_a_worker_goes_where_nobody_serves_once_its_lines_have_ended() -> None:
    waits = (demand(OTHER, 1), demand(THIRD, 0))
    assert chosen(*waits, seconds=9, idle=None) is None
    assert chosen(*waits, seconds=9, idle=3) is None
    assert chosen(*waits, seconds=9, idle=4) == THIRD
    assert chosen(idle=1e6) is None


def test_out_of_work_a_worker_helps_others_where_that_saves_more_than_loading_costs() -> None:
    assert chosen(demand(OTHER, 0, workers=1, seconds=7), idle=9) is None  # saves 3.5 s
    assert chosen(demand(OTHER, 0, workers=1, seconds=9), idle=9) == OTHER
    assert chosen(demand(OTHER, 0, workers=4, seconds=60), idle=9) is None  # saves 3 s
    unserved = demand(THIRD, 1, seconds=1)
    assert chosen(demand(OTHER, 0, workers=1, seconds=999), unserved, idle=9) == THIRD


def test_a_model_that_lately_failed_to_load_is_left_alone_while_there_is_another() -> None:
    failed = demand(OTHER, 0, failed=True)
    assert chosen(failed, idle=9) is None
    assert first_model([failed, demand(THIRD, 1, workers=2)]) == THIRD
    assert first_model([failed]) == OTHER


@pytest.fixture
def other(workshop: Workshop) -> ModelRecord:
    return workshop.make_model("org/other")


def seat(workshop: Workshop, pid: int, names: Sequence[str] = ()) -> Seat | None:
    with workshop.sessions.begin() as session:
        return take_seat(session, "here", pid, names)


def plan(workshop: Workshop, worker_id: WorkerId, *names: str) -> str | None:
    """What a worker of the workshop's model that has been idle for long will load."""
    residency = Residency(workshop.model.id, 1e6, 1.0, 1e6)
    with workshop.sessions.begin() as session:
        model = plan_switch(session, worker_id, residency, names)
    return None if model is None else model.name


def make_job_of(workshop: Workshop, model: ModelRecord, lines: int = 4, **fields: object) -> UUID:
    items = [make_item(f"line-{n}", model=model.name) for n in range(lines)]
    return workshop.make_job(items, **fields)


def test_starting_workers_load_what_waits_and_named_models_are_spread(
    workshop: Workshop, other: ModelRecord
) -> None:
    def names_of(*seats: Seat | None) -> list[str]:
        return [each.model.name for each in seats if each is not None]

    named = ("org/other", "org/stub")
    assert seat(workshop, 1, ("org/none",)) is None
    assert names_of(seat(workshop, 2, named), seat(workshop, 3, named)) == list(named)
    assert names_of(seat(workshop, 4), seat(workshop, 5)) == ["org/stub"] * 2
    make_job_of(workshop, other)
    assert names_of(seat(workshop, 6), seat(workshop, 7, ("org/stub",))) == [
        "org/other",
        "org/stub",
    ]


def test_of_two_idle_workers_one_goes_for_a_model_that_nobody_serves(
    workshop: Workshop, other: ModelRecord
) -> None:
    first, second = workshop.make_worker(1), workshop.make_worker(2)
    assert plan(workshop, first) is None
    job_id = make_job_of(workshop, other, lines=1)
    assert plan(workshop, first, "org/stub") is None
    assert plan(workshop, first) == "org/other"
    assert plan(workshop, second) is None
    reason = workshop.job(job_id).phase_reason
    assert reason == "A worker finishes other lines and then loads org/other."
    with workshop.sessions.begin() as session:
        new = change_seat(session, first, other)
    assert workshop.worker(first).end_reason == "made room for org/other"
    assert (workshop.worker(new.worker_id).model_id, workshop.worker(new.worker_id).pid) == (
        other.id,
        1,
    )
    assert workshop.job(job_id).phase_reason == "A worker is loading org/other."


def test_who_may_not_choose_now_works_on_and_a_plan_whose_answer_was_lost_is_taken_back(
    workshop: Workshop, other: ModelRecord
) -> None:
    first = workshop.make_worker(1)
    job_id = make_job_of(workshop, other, lines=1)
    with workshop.sessions.begin() as session:
        assert take_seat(session, "here", 2, ("org/none",)) is None  # it has the lock until the end
        assert plan(workshop, first) is None
    assert plan(workshop, first) == "org/other"  # the commit came through, its answer did not
    with workshop.sessions.begin() as session:
        pause_job(session, workshop.caller.project_id, job_id)
    assert plan(workshop, first) is None
    assert workshop.worker(first).next_model_id is None


@pytest.mark.parametrize("why", ["start", "pause"])
def test_lines_that_may_not_run_now_are_no_reason_to_load_their_model(
    workshop: Workshop, other: ModelRecord, why: str
) -> None:
    worker_id = workshop.make_worker()
    start = datetime.now(UTC) + timedelta(hours=1) if why == "start" else None
    job_id = make_job_of(workshop, other, start_after=start)
    if why == "pause":
        with workshop.sessions.begin() as session:
            pause_job(session, workshop.caller.project_id, job_id)
    assert plan(workshop, worker_id) is None


def test_an_operators_drain_stays_with_the_process(workshop: Workshop, other: ModelRecord) -> None:
    worker_id = workshop.make_worker()
    make_job_of(workshop, other)
    assert plan(workshop, worker_id) == "org/other"
    with workshop.sessions.begin() as session:
        drain_worker(session, worker_id)
    assert plan(workshop, worker_id) is None
    with workshop.sessions.begin() as session:
        new = change_seat(session, worker_id, other)
    with workshop.sessions() as session:
        (one,) = list_workers(session)
    assert (one.id, one.state, one.model) == (new.worker_id, "drained", "org/other")


def test_a_model_with_which_a_worker_died_while_loading_comes_last(
    workshop: Workshop, other: ModelRecord
) -> None:
    make_job_of(workshop, other)
    workshop.make_job(4)
    broken = seat(workshop, 1)
    assert broken is not None
    assert broken.model.name == "org/other"
    workshop.report_dead(1)
    again = seat(workshop, 1)
    assert again is not None
    assert again.model.name == "org/stub"
    workshop.execute(update(Worker).values(host="elsewhere", state="dead", ended_at=func.now()))
    elsewhere = seat(workshop, 1)
    assert elsewhere is not None
    assert elsewhere.model.name == "org/other"
