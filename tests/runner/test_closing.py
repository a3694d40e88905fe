"""The end of a job: proven counts, frozen totals, one closer."""

import pytest
from sqlalchemy import delete, func, select, update
from workshop import Workshop, make_item

from runner.db.models import File, FileIndex, Job, OutboxEvent, Result, Shard
from runner.domain.rings import Bell, Ring
from runner.services.closing import CountsDiffer, close_if_drained, close_job
from runner.services.leases import give_back
from runner.services.recovery import requeue_leases_of
from runner.services.results import commit_results


def events(workshop: Workshop) -> list[str]:
    return [row.kind for row in workshop.rows(select(OutboxEvent.kind).order_by(OutboxEvent.id))]


def drained_job(workshop: Workshop, lines: object = 5) -> object:
    """A job whose lines have all ended and that is not closed yet."""
    job_id = workshop.make_job(lines)  # type: ignore[arg-type]
    worker_id = workshop.make_worker()
    workshop.run(worker_id, workshop.claim(worker_id, shards=100))
    assert workshop.job(job_id).state == "finalizing"
    return job_id


def test_a_job_without_a_failing_line_has_no_error_file(workshop: Workshop) -> None:
    job_id = drained_job(workshop)
    assert workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.total, job.totals.succeeded, job.totals.failed) == ("completed", 5, 5, 0)
    assert job.error_file_id is None
    assert workshop.content(job.output_file_id).count(b"\n") == 5
    assert workshop.scalar(select(func.count()).where(File.job_id == job_id)) == 1
    assert events(workshop) == ["batch.completed"]
    assert None not in (job.in_progress_at, job.finalizing_at, job.completed_at)


def test_a_job_whose_every_line_failed_is_completed_with_an_error_file_only(
    workshop: Workshop,
) -> None:
    job_id = drained_job(workshop, [make_item(str(n), stream_options={}) for n in range(5)])
    workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 0, 5)
    assert job.output_file_id is None
    assert workshop.content(job.error_file_id).count(b"\n") == 5
    assert (job.totals.billed_nano, job.totals.output_tokens) == (0, 0)


def test_a_job_whose_counts_do_not_add_up_is_not_closed(workshop: Workshop) -> None:
    job_id = drained_job(workshop)
    workshop.execute(delete(Result).where(Result.job_id == job_id, Result.idx == 2))
    with pytest.raises(CountsDiffer):
        workshop.close(job_id)
    assert workshop.job(job_id).state == "finalizing"
    for table in (File, FileIndex):
        query = select(func.count()).select_from(table)
        assert workshop.scalar(query) == (1 if table is File else 0)
    assert events(workshop) == []


def test_closing_again_changes_nothing(workshop: Workshop) -> None:
    job_id = drained_job(workshop)
    assert workshop.close(job_id)
    before = workshop.job(job_id)
    assert not workshop.close(job_id)
    assert workshop.job(job_id) == before
    assert events(workshop) == ["batch.completed"]


def test_of_two_closers_at_once_the_second_goes_away_at_once(workshop: Workshop) -> None:
    job_id = drained_job(workshop)
    with workshop.sessions.begin() as first, workshop.sessions.begin() as second:
        second.execute(func.set_config("lock_timeout", "5s", True).select())
        assert close_job(first, job_id)  # type: ignore[arg-type]
        assert not close_job(second, job_id)  # type: ignore[arg-type]
    assert workshop.job(job_id).state == "completed"


def test_a_job_with_a_leased_shard_is_not_closed(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    workshop.claim(worker_id)
    workshop.cancel(job_id)
    assert not workshop.close(job_id)
    assert workshop.job(job_id).state == "cancelling"


def test_nothing_but_an_ending_job_is_closed(workshop: Workshop) -> None:
    assert not workshop.close(workshop.make_job(3))
    assert not workshop.close(workshop.make_job(3, ingested=False))


def test_the_end_of_the_last_shard_asks_for_the_files(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    first, second = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [first])
    assert Ring(Bell.FINALISE, job_id) not in workshop.rings
    workshop.run(worker_id, [second])
    assert workshop.rings.count(Ring(Bell.FINALISE, job_id)) == 1


def test_two_workers_that_end_the_last_shards_at_once_leave_nothing_open(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(8)
    one, other = workshop.make_worker(1), workshop.make_worker(2)
    (first,), (second,) = workshop.claim(one), workshop.claim(other)
    with workshop.sessions.begin() as a, workshop.sessions.begin() as b:
        commit_results(a, one, workshop.answer(first))
        commit_results(b, other, workshop.answer(second))
    for _ in range(2):
        with workshop.sessions.begin() as session:
            close_if_drained(session, job_id)
    assert workshop.job(job_id).state == "finalizing"


@pytest.mark.parametrize("way", ["given back", "requeued"])
def test_a_shard_freed_in_the_moment_of_the_cancel_does_not_hold_up_the_end(
    workshop: Workshop, way: str
) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    with workshop.sessions.begin() as session:
        if way == "given back":
            give_back(session, worker_id, [lease.key])
        else:
            requeue_leases_of(session, worker_id)
        workshop.cancel(job_id)  # it does not see that the shard has become open
    assert [shard.state for shard in workshop.shards(job_id)] == ["open"]
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.FINALISE, job_id) in workshop.rings
    assert workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.failed) == ("cancelled", 4)
    assert {shard.state for shard in workshop.shards(job_id)} == {"dropped"}


def test_the_totals_of_an_ended_job_are_frozen(workshop: Workshop) -> None:
    job_id = drained_job(workshop)
    workshop.close(job_id)
    before = workshop.job(job_id).totals
    assert before.billed_nano > 0
    workshop.execute(update(Shard).values(billed_nano=7, succeeded=0, state="dropped"))
    assert workshop.job(job_id).totals == before
    assert workshop.scalar(select(Job.billed_nano)) == before.billed_nano


def test_the_life_of_the_output_begins_when_it_is_made(workshop: Workshop) -> None:
    job_id = workshop.make_job(3, output_expires_seconds=3_600)
    workshop.drain()
    file = select(File.expires_at - File.created_at).where(File.job_id == job_id)
    assert workshop.scalar(file).total_seconds() == 3_600
