"""Retrying what has no answer, and reading both jobs as one."""

import json
from collections.abc import Callable

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop, make_item, make_items

from runner.db.models import File, Job
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JobId
from runner.domain.rings import Bell
from runner.domain.states import JobState
from runner.inference import open_counter
from runner.services import retries
from runner.services.counting import run_count
from runner.services.job_records import JobRecord
from runner.services.reconcile import expire_overdue_jobs
from runner.services.retries import RetryLines, family_of, read_merged

MakeWorkshop = Callable[..., Workshop]
GOOD = make_items(6)
BAD = make_item("bad", stream_options={})  # fails each time it runs


def retry(workshop: Workshop, job_id: JobId, lines: RetryLines = RetryLines.ALL) -> JobRecord:
    with workshop.sessions.begin() as session:
        return retries.retry_job(session, workshop.caller, job_id, lines, 4)


def merged(workshop: Workshop, job_id: JobId, view: str) -> list[str]:
    lines = read_merged(workshop.sessions, job_id, view)
    return [json.loads(line)["custom_id"] for line in lines]


def expire(workshop: Workshop, job_id: JobId) -> None:
    workshop.execute(update(Job).where(Job.id == job_id).values(expires_at=func.now()))
    with workshop.sessions.begin() as session:
        assert expire_overdue_jobs(session) == 1
    workshop.close_all()


def half_run(workshop: Workshop) -> JobId:
    """A job of which one shard of four lines (one of them bad) ran, and then it expired."""
    job_id = workshop.make_job([*GOOD[:3], BAD, *GOOD[3:]])
    worker_id = workshop.make_worker(pid=7)
    workshop.run(worker_id, workshop.claim(worker_id))
    expire(workshop, job_id)
    return job_id


def test_only_lines_without_an_answer_run_again_under_their_numbers(workshop: Workshop) -> None:
    parent = half_run(workshop)
    child = retry(workshop, parent)
    assert (child.state, child.total, child.parent_id) == (JobState.IN_PROGRESS, 4, parent)
    assert child.input_file_id == workshop.job(parent).input_file_id
    workshop.drain()
    assert sorted(workshop.results(child.id)) == [3, 4, 5, 6]
    ended = workshop.job(child.id)
    assert (ended.state, ended.totals.succeeded, ended.totals.failed) == ("completed", 3, 1)
    assert workshop.content(ended.output_file_id) == workshop.snapshot(child.id, "output")


@pytest.mark.parametrize(
    ("lines", "numbers"), [(RetryLines.FAILED, [3]), (RetryLines.UNFINISHED, [4, 5, 6])]
)
def test_the_failed_and_the_unreached_can_be_told_apart(
    workshop: Workshop, lines: RetryLines, numbers: list[int]
) -> None:
    child = retry(workshop, half_run(workshop), lines)
    workshop.drain()
    assert sorted(workshop.results(child.id)) == numbers


def test_nothing_is_billed_twice(workshop: Workshop) -> None:
    parent = half_run(workshop)
    before = workshop.job(parent).totals
    child = retry(workshop, parent)
    workshop.drain()
    assert sorted(workshop.usage(parent)) == [0, 1, 2]
    assert sorted(workshop.usage(child.id)) == [4, 5, 6]
    assert workshop.job(parent).totals == before
    billed = sum(row.billed_nano for row in workshop.usage(child.id).values())
    assert workshop.job(child.id).totals.billed_nano == billed


def test_both_read_as_one_in_the_order_of_the_lines(workshop: Workshop) -> None:
    parent = half_run(workshop)
    names = [f"line-{n}" for n in range(6)]
    assert merged(workshop, parent, "output") == names[:3]
    child = retry(workshop, parent)
    assert merged(workshop, child.id, "output") == names[:3]
    workshop.drain()
    for job_id in (parent, child.id):
        assert merged(workshop, job_id, "output") == names
        assert merged(workshop, job_id, "error") == ["bad"]
    (error,) = read_merged(workshop.sessions, parent, "error")
    assert error in workshop.snapshot(child.id, "error")  # the latest of its errors


def test_a_retry_can_be_retried(workshop: Workshop) -> None:
    parent = half_run(workshop)
    child = retry(workshop, parent)
    expire(workshop, child.id)
    grandchild = retry(workshop, child.id)
    with workshop.sessions() as session:
        for job_id in (parent, child.id, grandchild.id):
            assert family_of(session, job_id) == [parent, child.id, grandchild.id]
    workshop.drain()
    assert sorted(workshop.results(grandchild.id)) == [3, 4, 5, 6]
    assert len(merged(workshop, child.id, "output")) == 6


def test_what_was_refused_at_reading_is_not_retried(workshop: Workshop) -> None:
    lines = [*GOOD[:2], b"not json"]
    parent = workshop.make_job(lines, on_invalid="skip")
    workshop.drain()
    assert workshop.job(parent).totals.failed == 1
    with pytest.raises(StateConflict, match="no line to retry"):
        retry(workshop, parent)
    assert workshop.scalar(select(func.count()).select_from(Job)) == 1


def test_a_job_is_not_retried_before_its_end_nor_twice_at_once(workshop: Workshop) -> None:
    running = workshop.make_job(4)
    with pytest.raises(StateConflict, match="in_progress cannot be retried yet"):
        retry(workshop, running)
    workshop.cancel(running)
    workshop.close_all()
    retry(workshop, running)
    with pytest.raises(StateConflict, match="retried already, by batch_"):
        retry(workshop, running)


def test_a_job_of_another_project_or_without_its_file_is_not_retried(workshop: Workshop) -> None:
    parent = half_run(workshop)
    other = workshop.make_caller("another")
    with workshop.sessions.begin() as session, pytest.raises(NotFound):
        retries.retry_job(session, other, parent, RetryLines.ALL, 4)
    workshop.execute(update(File).values(deleted_at=func.now()))
    with pytest.raises(InvalidRequest, match="deleted or has expired"):
        retry(workshop, parent)


def test_a_retry_is_estimated_like_other_jobs(workshop: Workshop) -> None:
    parent = half_run(workshop)
    child = retry(workshop, parent)
    assert (Bell.COUNT, child.id) in [(each.bell, each.job_id) for each in workshop.rings]
    guess = workshop.job(child.id).estimate
    whole = workshop.job(parent).estimate
    assert guess is not None
    assert whole is not None
    assert (guess.given.lines, guess.is_counted) == (4, False)
    assert 0 < guess.given.input_tokens < whole.given.input_tokens
    run_count(workshop.sessions, workshop.settings, open_counter, child.id)
    workshop.drain()
    told = workshop.job(child.id).estimate
    assert told is not None
    assert told.actual is not None
    assert (told.is_counted, told.given.lines, told.refused) == (True, 3, 1)
    assert told.given.input_tokens == told.actual.input_tokens


def test_prefix_neighbours_stay_neighbours(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(shard_lines=8)
    system = [f"{letter * 2000}" for letter in "ab"]
    lines = [make_item(f"l{n}", f"{system[n % 2]} tell me of {n}") for n in range(8)]
    parent = workshop.make_job(lines)
    (shard,) = workshop.shards(parent)
    workshop.cancel(parent)
    workshop.close_all()
    child = retry(workshop, parent)
    assert [n for each in workshop.shards(child.id) for n in each.idx] == list(shard.idx)
