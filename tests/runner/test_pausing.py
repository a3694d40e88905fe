"""Pausing and resuming: what is leased, what ends, and what becomes of the deadline."""

from datetime import timedelta

import pytest
from sqlalchemy import func, update
from workshop import Workshop

from runner.db.models import Job
from runner.domain.errors import NotFound, StateConflict
from runner.domain.ids import JobId
from runner.domain.rings import Bell, Ring
from runner.domain.states import JobState, PauseReason
from runner.services import leases, pausing
from runner.services.job_records import JobRecord


def pause(workshop: Workshop, job_id: JobId) -> JobRecord:
    with workshop.sessions.begin() as session:
        return pausing.pause_job(session, workshop.caller.project_id, job_id)


def resume(workshop: Workshop, job_id: JobId) -> JobRecord:
    with workshop.sessions.begin() as session:
        return pausing.resume_job(session, workshop.caller.project_id, job_id)


def test_nothing_of_a_paused_job_is_leased_until_it_is_resumed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker()
    paused = pause(workshop, job_id)
    assert (paused.state, paused.phase) == (JobState.IN_PROGRESS, "paused")
    assert paused.pause_reason is PauseReason.USER
    assert workshop.claim(worker_id) == []
    resumed = resume(workshop, job_id)
    assert (resumed.phase, resumed.pause_reason) == ("waiting", None)
    assert len(workshop.claim(worker_id)) == 1
    assert {Ring(Bell.CANCEL, job_id), Ring(Bell.WAKE)} <= set(workshop.rings)


def test_a_job_paused_while_unread_is_read_and_waits(workshop: Workshop) -> None:
    job_id = workshop.make_job(4, ingested=False)
    pause(workshop, job_id)
    assert workshop.ingest(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.phase, job.total) == (JobState.IN_PROGRESS, "paused", 4)
    assert workshop.claim(workshop.make_worker()) == []


def test_a_worker_is_told_which_of_its_leases_are_paused(workshop: Workshop) -> None:
    held_up, other = workshop.make_job(4), workshop.make_job(4)
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id, shards=2)
    pause(workshop, held_up)
    with workshop.sessions() as session:
        standing = leases.look_at_leases(session, worker_id, workshop.model.id)
    assert {key.job_id for key in standing.paused} == {held_up}
    assert {key.job_id for key in standing.live} == {held_up, other}
    assert standing.ended == frozenset()
    assert len(held) == 2


def test_what_a_paused_job_has_in_an_engine_is_accepted_and_the_rest_waits(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id, shards=2)
    pause(workshop, job_id)
    workshop.commit(worker_id, workshop.answer(held[0])[:2])
    workshop.give_back(worker_id, *held)
    assert {(shard.state, shard.attempt) for shard in workshop.shards(job_id)} == {("open", 0)}
    resume(workshop, job_id)
    workshop.drain(worker_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded) == (JobState.COMPLETED, 8)


def test_a_paused_job_whose_last_line_was_in_an_engine_ends(workshop: Workshop) -> None:
    job_id = workshop.make_job(2)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    pause(workshop, job_id)
    workshop.run(worker_id, [lease])
    workshop.close_all()
    ended = workshop.job(job_id)
    assert (ended.state, ended.pause_reason) == (JobState.COMPLETED, None)


def test_a_lost_worker_of_a_paused_job_costs_nothing_but_the_attempt(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker(pid=7)
    workshop.claim(worker_id)
    pause(workshop, job_id)
    assert workshop.report_dead(pid=7) == 1
    assert [shard.state for shard in workshop.shards(job_id)] == ["open"]


def test_the_deadline_stands_still_while_a_job_is_paused(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    pause(workshop, job_id)
    hours = timedelta(hours=1)
    workshop.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(paused_at=func.now() - 3 * hours, expires_at=func.now() - hours)
    )
    workshop.tick()
    assert workshop.job(job_id).state is JobState.IN_PROGRESS
    left = resume(workshop, job_id).expires_at - workshop.scalar(func.now().select())
    assert timedelta(hours=1, minutes=59) < left < timedelta(hours=2, seconds=1)
    workshop.tick()
    assert workshop.job(job_id).state is JobState.IN_PROGRESS


def test_a_job_that_nobody_resumes_expires_in_the_end(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    pause(workshop, job_id)
    late = func.now() - pausing.PAUSED_AT_MOST - timedelta(seconds=1)
    workshop.execute(update(Job).where(Job.id == job_id).values(paused_at=late))
    workshop.tick()
    workshop.close_all()
    assert workshop.job(job_id).state is JobState.EXPIRED


def test_pausing_and_resuming_may_be_repeated(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    pause(workshop, job_id)
    before = workshop.rows(Job.__table__.select())[0].paused_at
    pause(workshop, job_id)
    assert workshop.rows(Job.__table__.select())[0].paused_at == before
    ends = [resume(workshop, job_id).expires_at for _ in range(2)]
    assert ends[0] == ends[1]


def test_a_job_that_ends_or_has_ended_cannot_be_paused_or_resumed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    pause(workshop, job_id)
    workshop.cancel(job_id)
    for act in (pause, resume):
        with pytest.raises(StateConflict, match="cancelling"):
            act(workshop, job_id)
    assert workshop.job(job_id).phase == "cancelling"
    workshop.close_all()
    assert workshop.job(job_id).state is JobState.CANCELLED


def test_another_projects_job_is_not_found(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    stranger = workshop.make_caller("stranger")
    with workshop.sessions.begin() as session, pytest.raises(NotFound):
        pausing.pause_job(session, stranger.project_id, job_id)


def test_no_worker_is_called_for_a_job_that_is_paused(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    pause(workshop, job_id)
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.WAKE) not in workshop.rings
    resume(workshop, job_id)
    workshop.tick()
    assert Ring(Bell.WAKE) in workshop.rings
