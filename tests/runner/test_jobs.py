"""Making, listing, cancelling and expiring jobs."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import func, select, update
from workshop import CHAT, Workshop

from runner.db.models import Job, OutboxEvent
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.rings import Bell, Ring
from runner.domain.states import JobState
from runner.services import jobs, keys
from runner.services.keys import Caller
from runner.services.reconcile import expire_overdue_jobs, keep_house


def overdue(workshop: Workshop, job_id: object) -> None:
    workshop.execute(update(Job).where(Job.id == job_id).values(expires_at=func.now()))


def test_a_created_job_waits_for_its_file_to_be_read(workshop: Workshop) -> None:
    job_id = workshop.make_job(3, ingested=False, metadata={"a": "b"}, priority=7)
    job = workshop.job(job_id)
    assert (job.state, job.phase, job.total) == (JobState.VALIDATING, "queued", 0)
    assert (job.metadata, job.priority, job.endpoint) == ({"a": "b"}, 7, CHAT)
    assert job.expires_at - job.created_at == timedelta(hours=24)
    assert workshop.rings == [Ring(Bell.INGEST, job_id)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "9s"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"run_hours": "at night"}, "run_hours"),
        ({"start_after": datetime.now(UTC) + timedelta(days=31)}, "start_after"),
        ({"on_invalid": "ask"}, "on_invalid"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"output_expires_seconds": 3_599}, "output_expires_after.seconds"),
        ({"output_expires_seconds": 2_592_001}, "output_expires_after.seconds"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"metadata": {"k" * 65: "x"}}, "metadata"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"metadata": {"k": "\0"}}, "metadata"),
        ({"input_file_id": Caller.__name__}, "input_file_id"),
    ],
)
def test_a_job_that_cannot_be_is_refused_by_name(
    workshop: Workshop, fields: dict[str, object], param: str
) -> None:
    if param == "input_file_id":
        fields = {"input_file_id": workshop.make_file(b"x", workshop.make_caller("another"))}
    with pytest.raises(InvalidRequest) as caught:
        workshop.make_job(ingested=False, **fields)
    assert caught.value.param == param
    assert workshop.scalar(select(func.count()).select_from(Job)) == 0


def test_an_output_cannot_be_an_input(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    workshop.drain()
    with pytest.raises(InvalidRequest, match="batch_output"):
        workshop.make_job(input_file_id=workshop.job(job_id).output_file_id)


def test_an_idempotency_key_makes_one_job_and_holds_for_one_body(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    fields = {"input_file_id": file_id, "ingested": False, "idempotency_key": "k"}
    first = workshop.make_job(**fields)  # type: ignore[arg-type]
    assert workshop.make_job(**fields) == first  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest) as caught:
        workshop.make_job(**fields, request_sha256=b"\1" * 32)  # type: ignore[arg-type]
    assert caught.value.code == "idempotency_key_reused"
    with workshop.sessions.begin() as session:
        colleague = keys.authenticate(session, keys.create_key(session, "house")[1])
    assert workshop.make_job(caller=colleague, **fields) == first  # type: ignore[arg-type]
    other = workshop.make_caller("another")
    assert workshop.make_job(ingested=False, idempotency_key="k", caller=other) != first


def test_an_idempotency_key_is_free_again_after_two_days(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    fields = {"input_file_id": file_id, "ingested": False, "idempotency_key": "k"}
    first = workshop.make_job(**fields)  # type: ignore[arg-type]
    workshop.execute(update(Job).values(created_at=func.now() - timedelta(hours=47)))
    keep_house(workshop.sessions)
    assert workshop.make_job(**fields) == first  # type: ignore[arg-type]
    workshop.execute(update(Job).values(created_at=func.now() - timedelta(hours=49)))
    keep_house(workshop.sessions)
    assert workshop.make_job(**fields) != first  # type: ignore[arg-type]


def test_a_repeat_tells_the_job_as_it_was_made(workshop: Workshop) -> None:
    new = jobs.NewJob(workshop.make_file(b"x"), CHAT, "24h", b"\0" * 32, idempotency_key="k")
    told = []
    for _ in range(2):
        with workshop.sessions.begin() as session:
            told.append(jobs.create_job(session, workshop.caller, new))
        workshop.ingest(told[0].id)  # it fails, for its file holds nothing of use
    assert told[0] == told[1]
    assert workshop.job(told[0].id).state == "failed"


def test_of_two_creates_with_one_key_at_once_both_get_the_same_job(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    new = jobs.NewJob(file_id, CHAT, "24h", b"\0" * 32, idempotency_key="k")
    earlier, looked = jobs._earlier_job, []

    with pytest.MonkeyPatch.context() as patch:

        def blind_at_first(*args: object) -> object:
            looked.append(args)
            return None if len(looked) == 1 else earlier(*args)  # type: ignore[arg-type]

        first = workshop.make_job(ingested=False, input_file_id=file_id, idempotency_key="k")
        patch.setattr(jobs, "_earlier_job", blind_at_first)
        with workshop.sessions.begin() as session:
            assert jobs.create_job(session, workshop.caller, new).id == first
    assert len(looked) == 2


def test_a_retry_of_the_same_body_finds_the_job_of_the_first_try(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    first = workshop.make_job(input_file_id=file_id, ingested=False)
    second = workshop.make_job(input_file_id=file_id, ingested=False)
    assert second != first
    again = workshop.make_job(input_file_id=file_id, ingested=False, is_retry=True)
    assert again == second
    changed = workshop.make_job(
        input_file_id=file_id, ingested=False, is_retry=True, request_sha256=b"\1" * 32
    )
    assert changed not in (first, second)
    workshop.execute(update(Job).values(created_at=func.now() - timedelta(minutes=11)))
    late = workshop.make_job(input_file_id=file_id, ingested=False, is_retry=True)
    assert late not in (first, second, changed)


def test_a_job_is_seen_by_its_own_project_only(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    other = workshop.make_caller("another").project_id
    with workshop.sessions() as session:
        for act in (jobs.get_job, jobs.cancel_job):
            with pytest.raises(NotFound):
                act(session, other, job_id)
        assert jobs.list_jobs(session, other, None, 10).items == []


def test_pages_show_each_job_once_newest_first(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    made = [workshop.make_job(input_file_id=file_id, ingested=False) for _ in range(7)]
    seen, after = [], None
    while True:
        with workshop.sessions() as session:
            page = jobs.list_jobs(session, workshop.caller.project_id, after, 3)
        seen += [job.id for job in page.items]
        if not page.has_more:
            break
        after = seen[-1]
    assert seen == made[::-1]


def test_a_job_is_cancelled_before_its_file_is_read(workshop: Workshop) -> None:
    job_id = workshop.make_job(3, ingested=False)
    job = workshop.cancel(job_id)
    assert (job.state, job.cancelling_at is None) == (JobState.CANCELLING, False)
    assert not workshop.ingest(job_id)
    assert workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.total, job.output_file_id, job.error_file_id) == (
        JobState.CANCELLED,
        0,
        None,
        None,
    )


def test_a_job_is_cancelled_while_it_runs(workshop: Workshop) -> None:
    job_id = workshop.make_job(12)
    worker_id = workshop.make_worker()
    done, running = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [done])
    workshop.rings.clear()
    job = workshop.cancel(job_id)
    assert job.state == JobState.CANCELLING
    assert {Ring(Bell.CANCEL, job_id), Ring(Bell.FINALISE, job_id)} == set(workshop.rings)
    assert [shard.state for shard in workshop.shards(job_id)] == ["done", "leased", "dropped"]
    workshop.give_back(worker_id, running)
    assert workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == (JobState.CANCELLED, 4, 8)
    codes = [code for _, code in workshop.errors(job_id)]
    assert codes == ["batch_cancelled"] * 8


def test_a_job_is_cancelled_while_its_files_are_closed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker()
    workshop.run(worker_id, workshop.claim(worker_id))
    assert workshop.cancel(job_id).state == JobState.CANCELLING
    workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.error_file_id) == (JobState.CANCELLED, 4, None)


def test_a_cancel_may_be_repeated_while_it_is_under_way(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.claim(workshop.make_worker())
    first = workshop.cancel(job_id)
    assert workshop.cancel(job_id) == first


@pytest.mark.parametrize("end", ["completed", "cancelled", "failed", "expired"])
def test_an_ended_job_cannot_be_cancelled(workshop: Workshop, end: str) -> None:
    job_id = workshop.make_job(b"x" if end == "failed" else 3)
    if end == "completed":
        workshop.drain()
    if end == "cancelled":
        workshop.cancel(job_id)
    if end == "expired":
        overdue(workshop, job_id)
        workshop.tick()
    workshop.close_all()
    before = workshop.job(job_id)
    assert before.state == end
    with pytest.raises(StateConflict, match=end):
        workshop.cancel(job_id)
    assert workshop.job(job_id) == before


def test_a_cancel_sees_the_state_of_now_not_the_one_it_read_before(workshop: Workshop) -> None:
    job_id = workshop.make_job(3)
    with workshop.sessions() as session:
        jobs.get_job(session, workshop.caller.project_id, job_id)
        workshop.drain()
        with pytest.raises(StateConflict):
            jobs.cancel_job(session, workshop.caller.project_id, job_id)


def test_an_overdue_job_keeps_what_is_finished_and_tells_the_rest(workshop: Workshop) -> None:
    job_id = workshop.make_job(12)
    worker_id = workshop.make_worker()
    done, running = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [done])
    overdue(workshop, job_id)
    workshop.tick()
    assert workshop.job(job_id).state == JobState.FINALIZING
    assert not workshop.close(job_id)
    assert workshop.commit(worker_id, workshop.answer(running)[:1]).accepted == 1
    workshop.give_back(worker_id, running)
    assert workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == (JobState.EXPIRED, 5, 7)
    assert job.expired_at is not None
    assert {code for _, code in workshop.errors(job_id)} == {"batch_expired"}
    assert len(workshop.usage(job_id)) == 5


def test_a_job_that_was_never_read_expires_too(workshop: Workshop) -> None:
    job_id = workshop.make_job(3, ingested=False)
    overdue(workshop, job_id)
    workshop.tick()
    assert not workshop.ingest(job_id)
    assert workshop.close(job_id)
    assert (workshop.job(job_id).state, workshop.job(job_id).total) == (JobState.EXPIRED, 0)


def test_a_job_that_is_being_cancelled_or_closed_does_not_expire(workshop: Workshop) -> None:
    cancelled, drained = workshop.make_job(4), workshop.make_job(4)
    worker_id = workshop.make_worker()
    first, second = workshop.claim(worker_id, shards=2)
    workshop.cancel(cancelled)
    workshop.run(worker_id, [second])
    for job_id in (cancelled, drained):
        overdue(workshop, job_id)
    with workshop.sessions.begin() as session:
        assert expire_overdue_jobs(session) == 0
    workshop.give_back(worker_id, first)
    workshop.close_all()
    assert (workshop.job(cancelled).state, workshop.job(drained).state) == (
        JobState.CANCELLED,
        JobState.COMPLETED,
    )


def test_each_end_is_announced_once_with_its_own_event(workshop: Workshop) -> None:
    ends = {workshop.make_job(b"x"): "batch.failed", workshop.make_job(2): "batch.completed"}
    workshop.drain()
    ends[stopped := workshop.make_job(2)] = "batch.cancelled"
    workshop.cancel(stopped)
    ends[late := workshop.make_job(2)] = "batch.expired"
    overdue(workshop, late)
    for _ in range(2):
        workshop.tick()
        workshop.close_all()
    told = workshop.rows(select(OutboxEvent.kind, OutboxEvent.payload))
    assert {row.payload["job_id"]: row.kind for row in told} == {
        str(job_id): kind for job_id, kind in ends.items()
    }
    assert len(told) == 4
