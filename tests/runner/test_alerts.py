"""Alerts: a promise that will not be kept is told once, while the job runs."""

from datetime import timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import Alert, Job, OutboxEvent, Usage
from runner.services import rollup
from runner.services.alerts import alerts_of, raise_alerts


def look(workshop: Workshop) -> int:
    with workshop.sessions.begin() as session:
        return raise_alerts(session)


def told(workshop: Workshop, job_id: UUID) -> list[tuple[str, str]]:
    with workshop.sessions() as session:
        found = alerts_of(session, [job_id]).get(job_id, [])
    return [(one.kind, one.message) for one in found]


def events(workshop: Workshop) -> list[str]:
    kinds = select(OutboxEvent.kind).where(OutboxEvent.kind.like("job.%"))
    return [row.kind for row in workshop.rows(kinds)]


def run_some(workshop: Workshop, job_id: UUID, shards: int, device_us: int) -> None:
    """Finish some shards at a pace, and roll them up."""
    worker_id = workshop.make_worker()
    for lease in workshop.claim(worker_id, shards=shards):
        workshop.run(worker_id, [lease])
    workshop.execute(update(Usage).where(Usage.job_id == job_id).values(device_us=device_us))
    with workshop.sessions.begin() as session:
        rollup.roll_up(session, job_id)


def end_in(workshop: Workshop, job_id: UUID, seconds: float) -> None:
    due = func.now() + timedelta(seconds=seconds)
    workshop.execute(update(Job).where(Job.id == job_id).values(expires_at=due))


def test_a_job_that_will_be_late_at_its_pace_is_told_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(100)
    run_some(workshop, job_id, 10, 60_000_000)  # a minute a line, 60 lines left, one worker
    end_in(workshop, job_id, 70 * 60)
    assert look(workshop) == 0
    end_in(workshop, job_id, 50 * 60)
    assert look(workshop) == 1
    ((kind, message),) = told(workshop, job_id)
    assert kind == "deadline"
    assert "60 lines are left" in message
    assert "about 1:00:00" in message
    assert look(workshop) == 0
    assert events(workshop) == ["job.deadline_at_risk"]
    payload = workshop.scalar(select(OutboxEvent.payload))
    assert payload == {"job_id": str(job_id), "kind": "deadline", "message": message}


def test_what_is_ahead_and_how_many_work_count(workshop: Workshop) -> None:
    first = workshop.make_job(60, priority=1)
    job_id = workshop.make_job(40)
    run_some(workshop, first, 5, 60_000_000)  # 40 lines left ahead, by the same model's pace
    end_in(workshop, job_id, 70 * 60)
    end_in(workshop, first, 86_400)
    workshop.make_worker(2)
    assert look(workshop) == 0  # 80 min of work for two
    end_in(workshop, job_id, 35 * 60)
    assert look(workshop) == 1
    assert told(workshop, first) == []
    assert told(workshop, job_id)[0][0] == "deadline"


def test_nothing_is_forecast_of_what_never_ran(workshop: Workshop) -> None:
    job_id = workshop.make_job(100)
    workshop.make_worker()
    end_in(workshop, job_id, 1)
    assert look(workshop) == 0


def test_with_no_worker_it_is_told_an_hour_before(workshop: Workshop) -> None:
    job_id = workshop.make_job(100)
    end_in(workshop, job_id, 3_700)
    assert look(workshop) == 0
    end_in(workshop, job_id, 3_500)
    assert look(workshop) == 1
    assert "No worker" in told(workshop, job_id)[0][1]


def test_a_paused_job_is_left_alone(workshop: Workshop) -> None:
    job_id = workshop.make_job(100)
    end_in(workshop, job_id, 100)
    paused = {"paused_at": func.now(), "pause_reason": "user"}
    workshop.execute(update(Job).values(paused))
    assert look(workshop) == 0


def test_a_running_job_above_its_bound_is_told_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(400, p99_bound_ms=1_000)
    run_some(workshop, job_id, 30, 1)
    workshop.execute(update(Usage).values(total_us=900_000))
    with workshop.sessions.begin() as session:
        rollup.rebuild(session, job_id)
    assert look(workshop) == 0
    workshop.execute(update(Usage).where(Usage.idx < 2).values(total_us=2_000_000))
    with workshop.sessions.begin() as session:
        rollup.rebuild(session, job_id)
    assert look(workshop) == 1
    ((kind, message),) = told(workshop, job_id)
    assert (kind, "the bound is 1,000 ms" in message) == ("latency", True)
    assert look(workshop) == 0
    assert events(workshop) == ["job.latency_above_bound"]


@pytest.mark.parametrize(("bound_ms", "kinds"), [(10, ["latency"]), (11, []), (None, [])])
def test_a_short_job_is_judged_at_its_end_by_the_exact_figure(
    workshop: Workshop, bound_ms: int | None, kinds: list[str]
) -> None:
    job_id = workshop.make_job(4, p99_bound_ms=bound_ms)
    run_some(workshop, job_id, 1, 1)
    workshop.execute(update(Usage).values(total_us=10_001))
    workshop.close_all()
    assert workshop.job(job_id).state == "completed"
    assert [kind for kind, _ in told(workshop, job_id)] == kinds


def test_the_tick_looks_and_alerts_go_with_their_job(workshop: Workshop) -> None:
    job_id = workshop.make_job(10)
    end_in(workshop, job_id, 100)
    workshop.tick()
    assert workshop.scalar(select(func.count()).select_from(Alert)) == 1
    with workshop.sessions() as session:
        assert alerts_of(session, []) == {}
