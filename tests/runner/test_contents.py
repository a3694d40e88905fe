"""Output and error files as views: in line order, to the byte, from anywhere."""

import random
from collections.abc import Callable

import pytest
from sqlalchemy import func, select
from workshop import Workshop, make_item, make_items

from runner.db.models import File, FileIndex, Job
from runner.domain.ids import JobId
from runner.services import contents

MakeWorkshop = Callable[..., Workshop]

ODD_IDS = [
    '"',
    "\\",
    'a"b\\c',
    "ü",
    "日本語",
    "🎈",
    " ",
    "a/b",
    "</script>",
    "\u00adx"[1:],
    "é" * 100,
]


def odd_ids() -> list[str]:
    return [each for each in ODD_IDS if each and each.isprintable()]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index entry per eight lines and pages of five, so that few lines have many of them."""
    monkeypatch.setattr(contents, "INDEX_LINES", 8)
    monkeypatch.setattr(contents, "_PAGE_LINES", 5)
    monkeypatch.setattr(contents, "_PAGE_ITEMS", 6)


def finished_job(workshop: Workshop, lines: int = 40) -> JobId:
    """A completed job whose every third line has failed."""
    job_id = workshop.make_job(
        [
            make_item(f"line-{n}", f"Tale {n}", **({"stream_options": {}} if n % 3 == 0 else {}))
            for n in range(lines)
        ]
    )
    workshop.drain()
    return job_id


def stopped_job(workshop: Workshop, how: str, ids: list[str]) -> JobId:
    """A cancelled or expired job of which each second shard was run."""
    job_id = workshop.make_job([make_item(each, f"Tale of {n}") for n, each in enumerate(ids)])
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id, shards=100)
    workshop.run(worker_id, held[::2])
    if how == "cancelled":
        workshop.cancel(job_id)
    else:
        workshop.execute(
            Job.__table__.update().where(Job.id == job_id).values(expires_at=func.now())
        )
        workshop.tick()
    workshop.give_back(worker_id, *held[1::2])
    workshop.tick()
    workshop.close_all()
    assert workshop.job(job_id).state == how
    return job_id


def test_lines_come_in_the_order_of_the_input_however_they_ended(workshop: Workshop) -> None:
    job_id = workshop.make_job(20)
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id, shards=100)
    random.Random(3).shuffle(held)
    workshop.run(worker_id, held)
    workshop.close_all()
    names = [line["custom_id"] for line in workshop.parsed(job_id, "output")]
    assert names == [f"line-{n}" for n in range(20)]


def test_a_success_is_one_line_of_the_contract(workshop: Workshop) -> None:
    job_id = workshop.make_job([make_item('say "hi"', "Hello there", max_tokens=3)])
    workshop.drain()
    (line,) = workshop.parsed(job_id, "output")
    assert line["id"].startswith("batch_req_")
    assert (line["custom_id"], line["error"]) == ('say "hi"', None)
    assert line["response"]["status_code"] == 200
    body = line["response"]["body"]
    assert (body["object"], body["model"]) == ("chat.completion", "org/stub")
    choice = body["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["message"]["content"].strip()
    assert choice["finish_reason"] in ("stop", "length")
    usage = body["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    row = workshop.usage(job_id)[0]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (
        row.prompt_tokens,
        row.output_tokens,
    )


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("view", ["output", "error"])
def test_any_range_of_a_finished_file_is_that_slice(workshop: Workshop, view: str) -> None:
    job_id = finished_job(workshop)
    job = workshop.job(job_id)
    file_id = job.output_file_id if view == "output" else job.error_file_id
    whole = workshop.content(file_id)
    assert whole == workshop.snapshot(job_id, view)
    assert workshop.scalar(select(File.size).where(File.id == file_id)) == len(whole)
    _assert_slices(workshop, file_id, whole)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("how", ["cancelled", "expired"])
def test_unfinished_lines_are_told_in_place_and_counted_to_the_byte(
    workshop: Workshop, how: str
) -> None:
    ids = [*odd_ids(), *(f"line-{n}" for n in range(40))]
    job_id = stopped_job(workshop, how, ids)
    job = workshop.job(job_id)
    output, errors = workshop.parsed(job_id, "output"), workshop.parsed(job_id, "error")
    assert (len(output), len(errors)) == (job.totals.succeeded, job.totals.failed)
    assert len(output) + len(errors) == job.total == len(ids)
    assert sorted(line["custom_id"] for line in [*output, *errors]) == sorted(ids)
    places = {each: number for number, each in enumerate(ids)}
    for lines in (output, errors):
        numbers = [places[line["custom_id"]] for line in lines]
        assert numbers == sorted(numbers)
    assert {line["error"]["code"] for line in errors} == {f"batch_{how}"}
    assert all(line["response"] is None for line in errors)
    for file_id, view in ((job.output_file_id, "output"), (job.error_file_id, "error")):
        whole = workshop.content(file_id)
        assert whole == workshop.snapshot(job_id, view)
        assert workshop.scalar(select(File.size).where(File.id == file_id)) == len(whole)
        _assert_slices(workshop, file_id, whole)


def _assert_slices(workshop: Workshop, file_id: object, whole: bytes) -> None:
    """Ranges around every border of the index, and many at random (the seed is fixed)."""
    query = select(FileIndex.byte_offset).where(FileIndex.file_id == file_id)
    borders = [row.byte_offset for row in workshop.rows(query)]
    assert len(borders) > 2
    pick = random.Random(7)
    near = [at + step for at in (*borders, len(whole)) for step in (-1, 0, 1)]
    places = [*near, *(pick.randrange(len(whole)) for _ in range(20))]
    for start in places:
        stop = pick.choice([None, start + 1, start + pick.randrange(1, 3000), len(whole)])
        if 0 <= start < len(whole) and (stop is None or stop > start):
            assert workshop.content(file_id, start, stop) == whole[start:stop]  # type: ignore[arg-type]


def test_an_index_entry_stands_for_1024_lines_of_the_input(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(shard_lines=500)
    job_id = workshop.make_job(2_500)
    workshop.drain()
    file_id = workshop.job(job_id).output_file_id
    query = select(FileIndex).where(FileIndex.file_id == file_id).order_by(FileIndex.block_no)
    with workshop.sessions() as session:
        entries = session.scalars(query).all()
    whole = workshop.content(file_id)
    lines = whole.split(b"\n")
    assert [entry.block_no for entry in entries] == [0, 1, 2]
    for entry in entries:
        before = sum(len(line) + 1 for line in lines[: entry.block_no * 1024])
        assert entry.byte_offset == before
    middle = entries[1].byte_offset + 17
    assert workshop.content(file_id, middle, middle + 5_000) == whole[middle : middle + 5_000]


def test_a_running_jobs_files_are_snapshots(workshop: Workshop) -> None:
    job_id = workshop.make_job(
        [*make_items(4), make_item("bad", stream_options={}), *make_items(3, start=10)]
    )
    assert workshop.snapshot(job_id, "output") == workshop.snapshot(job_id, "error") == b""
    worker_id = workshop.make_worker()
    first, second = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [second])
    assert [line["custom_id"] for line in workshop.parsed(job_id, "output")] == [
        "line-10",
        "line-11",
        "line-12",
    ]
    assert [name for name, _ in workshop.errors(job_id)] == ["bad"]
    workshop.run(worker_id, [first])
    assert len(workshop.parsed(job_id, "output")) == 7


def test_a_job_that_is_being_cancelled_tells_no_unfinished_lines_yet(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    workshop.claim(workshop.make_worker())
    workshop.cancel(job_id)
    assert workshop.snapshot(job_id, "error") == b""


@pytest.mark.usefixtures("small_blocks")
def test_an_upload_is_read_from_anywhere_too(workshop: Workshop) -> None:
    data = random.Random(1).randbytes(2 * 1024**2 + 77)
    file_id = workshop.make_file(data)
    assert workshop.content(file_id) == data
    edge = 1024**2
    for start, stop in (
        (edge - 1, edge + 1),
        (edge, edge),
        (5, None),
        (2 * edge + 76, None),
        (0, 1),
    ):
        assert workshop.content(file_id, start, stop) == data[start:stop]
    assert workshop.content(file_id, len(data)) == b""
