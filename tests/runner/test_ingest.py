"""Reading a job's file: started with every line placed, or failed with every fault named."""

import json
import re
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from patience import PATIENCE
from sqlalchemy import func, select, text, update
from workshop import MODEL, Workshop, joined, make_item, make_items

from runner.config import Settings
from runner.db.models import File, Job, JobError, Result, Shard, WorkItem
from runner.domain.rings import Bell, Ring
from runner.domain.states import JobState
from runner.services import ingest as ingest_service
from runner.services import job_models
from runner.services.files import delete_file
from runner.services.models import PriceList, set_price

MakeWorkshop = Callable[..., Workshop]


def counts(workshop: Workshop) -> list[int]:
    """Rows of the tables that an ingest fills."""
    tables = (WorkItem, Shard, Result)
    return [workshop.scalar(select(func.count()).select_from(table)) for table in tables]


def codes(workshop: Workshop, job_id: object) -> list[tuple[str, int | None]]:
    query = select(JobError.code, JobError.line).where(JobError.job_id == job_id)
    return [tuple(row) for row in workshop.rows(query.order_by(JobError.error_no))]


@contextmanager
def stopped_reader(
    workshop: Workshop,
    job_id: object,
    monkeypatch: pytest.MonkeyPatch,
    end: bool | None = False,
) -> Iterator[threading.Event]:
    """An ingest in another thread that has read its lines and then waits for the event.

    ``end`` is what it must return then; None, that it must fail.
    """
    reached, go_on = threading.Event(), threading.Event()
    caught: list[BaseException] = []
    model = job_models.price_at

    def wait_first(*args: object) -> object:
        if threading.current_thread() is reader:
            reached.set()
            assert go_on.wait(PATIENCE)
        return model(*args)  # type: ignore[arg-type]

    def read() -> None:
        try:
            outcome.append(workshop.ingest(job_id))  # type: ignore[arg-type]
        except Exception as error:
            caught.append(error)

    outcome: list[bool] = []
    reader = threading.Thread(target=read)
    monkeypatch.setattr(job_models, "price_at", wait_first)
    reader.start()
    assert reached.wait(PATIENCE)
    try:
        yield go_on
    finally:
        go_on.set()
        reader.join(PATIENCE)
    assert (outcome, len(caught)) == (([], 1) if end is None else ([end], 0))


def test_every_line_is_placed_and_in_one_shard(workshop: Workshop) -> None:
    lines = make_items(10)
    job_id = workshop.make_job(joined(lines[:4]) + b"\n  \r\n" + joined(lines[4:]))
    job = workshop.job(job_id)
    assert (job.state, job.total, job.model) == (JobState.IN_PROGRESS, 10, MODEL)
    shards = workshop.shards(job_id)
    assert [list(shard.idx) for shard in shards] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert {shard.state for shard in shards} == {"open"}
    leases = workshop.claim(workshop.make_worker(), shards=10)
    read = [item for lease in leases for item in workshop.read(lease)]
    assert [item.data for item in read] == lines
    assert [item.custom_id for item in read] == [f"line-{n}" for n in range(10)]
    assert Ring(Bell.WAKE) in workshop.rings


def test_shards_are_in_prefix_order(workshop: Workshop) -> None:
    tales = {letter: letter * 400 for letter in "xy"}
    lines = [make_item(f"{n}", tales["xy"[n % 2]] + str(n)) for n in range(8)]
    job_id = workshop.make_job(lines)
    assert [list(shard.idx) for shard in workshop.shards(job_id)] == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_line_that_crosses_chunks_is_read_whole(workshop: Workshop) -> None:
    lines = [make_item("long", "ü" * 700_000), make_item("b"), make_item("longer", "y" * 3_000_000)]
    workshop.make_job(lines)
    (lease,) = workshop.claim(workshop.make_worker())
    assert [item.data for item in workshop.read(lease)] == lines


def test_lines_beyond_two_gibibytes_are_read(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    beyond = 3 * 1024**3
    workshop.execute(
        update(WorkItem).where(WorkItem.job_id == job_id).values(byte_offset=beyond + 7)
    )
    workshop.execute(
        text("UPDATE file_chunks SET chunk_no = 3072, data = 'padding'::bytea || data")
    )
    (lease,) = workshop.claim(workshop.make_worker())
    assert [item.data for item in workshop.read(lease)] == make_items(1)


def test_a_bad_file_fails_with_every_bad_line_named(workshop: Workshop) -> None:
    lines = [
        make_item("a"),
        b"nonsense",
        b"",
        make_item("a"),
        make_item("b", model="org/none"),
        make_item("c", stream=True),
        make_item("a"),
        b'{"custom_id":"d"}',
    ]
    job_id = workshop.make_job(lines)
    job = workshop.job(job_id)
    assert job.state == JobState.FAILED
    assert (job.total, job.totals.succeeded, job.totals.failed) == (0, 0, 0)
    assert (job.output_file_id, job.error_file_id) == (None, None)
    expected = [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 4),
        ("model_not_found", 5),
        ("streaming_unsupported", 6),
        ("duplicate_custom_id", 7),
        ("missing_required_parameter", 8),
    ]
    assert [(fault.code, fault.line) for fault in job.faults] == expected
    assert codes(workshop, job_id) == expected
    assert job.fault_count == 6
    assert counts(workshop) == [0, 0, 0]


def test_a_thousand_faults_are_kept_a_hundred_shown_and_all_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job([*make_items(6_000), *[b"x"] * 1_500])
    job = workshop.job(job_id)
    assert job.state == JobState.FAILED
    assert (job.fault_count, len(job.faults)) == (1_500, 100)
    assert len(codes(workshop, job_id)) == 1_000
    assert codes(workshop, job_id)[0] == ("invalid_json_line", 6_001)
    assert counts(workshop) == [0, 0, 0]


def test_bad_lines_that_are_skipped_have_their_error_at_once(workshop: Workshop) -> None:
    lines = [
        make_item("a"),
        b"nonsense",
        make_item("b", model='org/"none"'),
        make_item("c"),
        make_item("a"),
        b'{"custom_id":"d"}',
    ]
    job_id = workshop.make_job(lines, on_invalid="skip")
    job = workshop.job(job_id)
    assert (job.state, job.total) == (JobState.IN_PROGRESS, 6)
    assert (job.totals.succeeded, job.totals.failed) == (0, 4)
    assert sorted(idx for shard in workshop.shards(job_id) for idx in shard.idx) == [0, 3]
    assert list(workshop.errors(job_id)) == [
        (None, "invalid_json_line"),
        ("b", "model_not_found"),
        ("a", "duplicate_custom_id"),
        ("d", "missing_required_parameter"),
    ]
    statuses = [line["response"]["status_code"] for line in workshop.parsed(job_id, "error")]
    assert statuses == [400] * 4
    workshop.drain()
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == (JobState.COMPLETED, 2, 4)


def test_a_job_with_nothing_but_bad_lines_is_completed_when_they_are_skipped(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job([b"x", b"y"], on_invalid="skip")
    assert workshop.job(job_id).state == JobState.FINALIZING
    assert Ring(Bell.FINALISE, job_id) in workshop.rings
    workshop.close(job_id)
    job = workshop.job(job_id)
    assert (job.state, job.output_file_id is None) == (JobState.COMPLETED, True)
    assert workshop.content(job.error_file_id).count(b"\n") == 2


@pytest.mark.parametrize("on_invalid", ["fail", "skip"])
@pytest.mark.parametrize("data", [b"", b"\n \r\n\n", b"\xef\xbb\xbf"])
def test_a_file_without_a_line_fails(workshop: Workshop, data: bytes, on_invalid: str) -> None:
    job_id = workshop.make_job(data, on_invalid=on_invalid)
    assert workshop.job(job_id).state == JobState.FAILED
    assert codes(workshop, job_id) == [("empty_file", None)]


@pytest.mark.parametrize("on_invalid", ["fail", "skip"])
def test_too_many_lines_fail_the_job(make_workshop: MakeWorkshop, on_invalid: str) -> None:
    workshop = make_workshop(max_job_lines=5)
    fits = workshop.make_job(joined(make_items(5)) + b"\n\n", on_invalid=on_invalid)
    assert workshop.job(fits).state == JobState.IN_PROGRESS
    job_id = workshop.make_job(6, on_invalid=on_invalid)
    assert workshop.job(job_id).state == JobState.FAILED
    assert codes(workshop, job_id) == [("too_many_tasks", None)]


def test_a_deleted_or_expired_input_fails_the_job(workshop: Workshop) -> None:
    deleted, expired = (workshop.make_job(ingested=False) for _ in range(2))
    with workshop.sessions.begin() as session:
        project_id = workshop.caller.project_id
        delete_file(session, project_id, workshop.job(deleted).input_file_id)
    workshop.execute(
        update(File)
        .where(File.id == workshop.job(expired).input_file_id)
        .values(expires_at=func.now())
    )
    for job_id in (deleted, expired):
        assert workshop.ingest(job_id)
        assert workshop.job(job_id).state == JobState.FAILED
        assert codes(workshop, job_id) == [("file_not_found", None)]


def test_an_ingested_job_is_not_read_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(3)
    assert not workshop.ingest(job_id)
    assert counts(workshop) == [3, 1, 0]


def test_of_two_readers_at_once_one_reads(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = workshop.make_job(5, ingested=False)
    with stopped_reader(workshop, job_id, monkeypatch, end=True):
        assert not workshop.ingest(job_id)
    assert workshop.job(job_id).state == JobState.IN_PROGRESS
    assert counts(workshop) == [5, 2, 0]


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_job_cancelled_while_it_is_read_leaves_nothing(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    job_id = workshop.make_job(5, ingested=False)
    with stopped_reader(workshop, job_id, monkeypatch):
        assert workshop.cancel(job_id).state == JobState.CANCELLING
        if is_closed:
            assert workshop.close(job_id)
    workshop.close(job_id)
    assert counts(workshop) == [0, 0, 0]
    assert workshop.job(job_id).state == JobState.CANCELLED


def test_the_reader_after_a_killed_one_need_not_wait(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = workshop.make_job(5, ingested=False)
    with stopped_reader(workshop, job_id, monkeypatch, end=None) as go_on:
        workshop.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        )
        assert workshop.ingest(job_id)
        assert counts(workshop) == [5, 2, 0]
        go_on.set()
    assert counts(workshop) == [5, 2, 0]
    assert workshop.job(job_id).state == JobState.IN_PROGRESS


def test_a_reader_that_is_stuck_is_cut_off(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = workshop.make_job(5, ingested=False)
    with stopped_reader(workshop, job_id, monkeypatch, end=None):
        assert not workshop.ingest(job_id)
        workshop.execute(update(Job).where(Job.id == job_id).values(ingest_expires_at=func.now()))
        assert not workshop.ingest(job_id)
        deadline = time.monotonic() + PATIENCE
        while not workshop.ingest(job_id):
            assert time.monotonic() < deadline
    assert counts(workshop) == [5, 2, 0]


def test_a_reader_tells_that_it_reads_also_where_lines_are_few_and_long(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Settings, "heartbeat_seconds", 1e-9)
    job_id = workshop.make_job(5, ingested=False)
    renewals = []
    renew = ingest_service._Ingest._renew

    def note(reading: ingest_service._Ingest) -> None:
        renewals.append(reading)
        renew(reading)

    monkeypatch.setattr(ingest_service._Ingest, "_renew", note)
    workshop.ingest(job_id)
    assert len(renewals) >= 5


def test_a_file_that_has_ended_many_readers_is_given_up(workshop: Workshop) -> None:
    job_id = workshop.make_job(5, ingested=False)
    workshop.execute(update(Job).values(ingest_epoch=ingest_service._MOST_READS))
    assert workshop.ingest(job_id)
    assert workshop.job(job_id).state == JobState.FAILED
    assert codes(workshop, job_id) == [("internal_error", None)]


def test_a_reader_that_was_overtaken_leaves_nothing(
    make_workshop: MakeWorkshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = make_workshop()
    job_id = workshop.make_job(5, ingested=False)
    with stopped_reader(workshop, job_id, monkeypatch):
        workshop.execute(
            update(Job).where(Job.id == job_id).values(ingest_epoch=Job.ingest_epoch + 1)
        )
    assert counts(workshop) == [0, 0, 0]
    assert workshop.job(job_id).state == JobState.VALIDATING


def test_the_price_is_that_of_the_jobs_creation(workshop: Workshop) -> None:
    job_id = workshop.make_job(1, ingested=False)
    before = workshop.scalar(text("SELECT id FROM prices"))
    with workshop.sessions.begin() as session:
        set_price(session, workshop.model.id, PriceList(output_nano_per_million=1))
    workshop.ingest(job_id)
    assert {shard.price_id for shard in workshop.shards(job_id)} == {before}
    later = workshop.make_job(1)
    assert {shard.price_id for shard in workshop.shards(later)} != {before}


def test_fifty_thousand_lines_are_read_in_little_memory(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(shard_lines=64)
    head, tail = make_item("@", "Once upon a time " * 80).split(b"@")
    file_id = workshop.make_file(b"".join(head + b"%d" % n + tail + b"\n" for n in range(50_000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    job_id = workshop.make_job(input_file_id=file_id)
    assert time.process_time() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60 * 1024  # KiB
    assert workshop.job(job_id).total == 50_000
    assert len(workshop.shards(job_id)) == 782


def test_messages_of_faults_are_sentences_without_the_lines_content(workshop: Workshop) -> None:
    secret = "my-secret-prompt"
    lines = [f'{{"{secret}"'.encode(), make_item("a", secret, stream=3), make_item("", secret)]
    job_id = workshop.make_job(lines)
    for fault in workshop.job(job_id).faults:
        assert secret not in fault.message
        assert re.match(r"[A-Za-z].*\.$", fault.message)
    assert json.dumps([fault.message for fault in workshop.job(job_id).faults])
