"""Changing a job while it is queued or runs, and being told why it waits."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import AuditEntry, Job, Model, Worker
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JobId
from runner.domain.rings import Bell, Ring
from runner.services.job_edits import JobChange, edit_job
from runner.services.job_records import JobRecord


def edit(workshop: Workshop, job_id: JobId, **fields: object) -> JobRecord:
    with workshop.sessions.begin() as session:
        change = JobChange(**fields)  # type: ignore[arg-type]
        return edit_job(session, workshop.caller.project_id, job_id, change)


def now_of(workshop: Workshop) -> datetime:
    now = workshop.scalar(select(func.now()))
    assert isinstance(now, datetime)
    return now


def told(workshop: Workshop, job_id: JobId) -> tuple[str, str | None, int | None]:
    job = workshop.job(job_id)
    return job.phase, job.phase_reason, job.queue_position


def test_a_queued_job_that_is_made_urgent_goes_first(workshop: Workshop) -> None:
    first, second = workshop.make_job(4), workshop.make_job(4)
    workshop.rings.clear()
    assert edit(workshop, second, priority=5).priority == 5
    assert workshop.rings == [Ring(Bell.WAKE)]
    held = workshop.claim(workshop.make_worker(), shards=2)
    assert [lease.key.job_id for lease in held] == [second, first]
    assert [lease.priority for lease in held] == [5, 0]


def test_hours_are_given_kept_and_taken_away(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    assert edit(workshop, job_id, run_hours="22:00-06:00").run_hours == "22:00-06:00 UTC"
    assert edit(workshop, job_id, priority=1).run_hours == "22:00-06:00 UTC"
    assert edit(workshop, job_id, clear=frozenset({"run_hours"})).run_hours is None


def test_the_deadline_follows_the_start(workshop: Workshop) -> None:
    start = now_of(workshop) + timedelta(days=2)
    job_id = workshop.make_job(4, start_after=start, completion_window="1h")
    assert workshop.job(job_id).expires_at == start + timedelta(hours=1)
    later = start + timedelta(days=1)
    assert edit(workshop, job_id, start_after=later).expires_at == later + timedelta(hours=1)
    job = edit(workshop, job_id, clear=frozenset({"start_after"}))
    assert (job.start_after, job.expires_at) == (None, job.created_at + timedelta(hours=1))


def test_a_start_in_the_past_means_now(workshop: Workshop) -> None:
    job_id = workshop.make_job(4, start_after=now_of(workshop) - timedelta(days=9))
    job = workshop.job(job_id)
    assert job.expires_at == job.created_at + timedelta(hours=24)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, None),
        ({"priority": 101}, "priority"),
        ({"run_hours": "at night"}, "run_hours"),
        ({"clear": frozenset({"priority"})}, "priority"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(
    workshop: Workshop, fields: dict[str, object], param: str | None
) -> None:
    job_id = workshop.make_job(4)
    with pytest.raises(InvalidRequest) as caught:
        edit(workshop, job_id, **fields)
    assert caught.value.param == param


def test_what_has_ended_or_is_anothers_cannot_be_changed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    with workshop.sessions.begin() as session, pytest.raises(NotFound):
        edit_job(session, workshop.make_caller("b").project_id, job_id, JobChange(priority=1))
    workshop.cancel(job_id)
    with pytest.raises(StateConflict, match="cancelling"):
        edit(workshop, job_id, priority=1)


def test_a_change_is_written_in_the_audit(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    edit(workshop, job_id, priority=3, clear=frozenset({"run_hours"}))
    (entry,) = workshop.rows(select(AuditEntry.detail).where(AuditEntry.action == "job.edit"))
    assert entry.detail == {"priority": "3", "run_hours": None}


def test_a_job_tells_that_no_worker_has_its_model(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    none = ("waiting", "Waiting for a worker of org/stub; none runs.", 1)
    assert told(workshop, job_id) == none
    other = workshop.make_model("org/other")
    worker_id = workshop.make_worker()
    workshop.execute(update(Worker).values(model_id=other.id))
    assert "have another model loaded" in str(told(workshop, job_id)[1])
    workshop.execute(update(Worker).values(model_id=workshop.model.id, state="starting"))
    assert told(workshop, job_id)[1] == "A worker is loading org/stub."
    workshop.execute(update(Worker).values(state="draining"))
    assert "they drain" in str(told(workshop, job_id)[1])
    workshop.execute(update(Worker).values(state="ready"))
    assert told(workshop, job_id) == ("waiting", "Next: waiting for room in a worker.", 1)
    workshop.execute(update(Model).values(retired_at=func.now()))
    assert "is not installed any more" in str(told(workshop, job_id)[1])
    assert worker_id


def test_a_job_tells_how_many_are_before_it(workshop: Workshop) -> None:
    workshop.make_worker()
    jobs = [workshop.make_job(4) for _ in range(3)]
    urgent = workshop.make_job(4, priority=1)
    reasons = [told(workshop, job_id)[1:] for job_id in (urgent, *jobs)]
    assert reasons == [
        ("Next: waiting for room in a worker.", 1),
        ("Behind 1 job.", 2),
        ("Behind 2 jobs.", 3),
        ("Behind 3 jobs.", 4),
    ]


def test_a_job_with_lines_in_an_engine_does_not_wait(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    workshop.claim(workshop.make_worker())
    assert told(workshop, job_id) == ("in_progress", None, None)


def test_a_job_tells_the_time_that_it_waits_for(workshop: Workshop) -> None:
    now, job_id = now_of(workshop), workshop.make_job(4)
    opens, shuts = now + timedelta(hours=2), now + timedelta(hours=3)
    hours = f"{opens:%H:%M}-{shuts:%H:%M}"
    edit(workshop, job_id, run_hours=hours)
    words = f"Outside its hours ({hours} UTC) until {opens:%Y-%m-%d %H:%M} UTC."
    assert told(workshop, job_id) == ("waiting", words, None)
    edit(workshop, job_id, start_after=now + timedelta(minutes=1))
    assert told(workshop, job_id)[1] == words
    start = opens + timedelta(minutes=1)
    edit(workshop, job_id, start_after=start)
    words = f"Starts after {start:%Y-%m-%d %H:%M:%S} UTC."
    assert told(workshop, job_id) == ("waiting", words, None)


def test_a_suspect_that_waits_is_told(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    for pid in (1, 2):
        workshop.claim(workshop.make_worker(pid))
        workshop.report_dead(pid)
    workshop.make_worker(3)
    assert told(workshop, job_id)[0] == "waiting"
    assert workshop.rows(select(Job.state))[0].state == "in_progress"
