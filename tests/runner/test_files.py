"""Uploads: stored as they came, listed in pages, deleted without hurting a live job."""

import hashlib
from collections.abc import Iterator

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop, make_items

from runner.db.models import File, FileChunk
from runner.domain.errors import InvalidRequest, NotFound, TooLarge
from runner.domain.ids import FileId
from runner.services import files
from runner.services.files import FileFilter, Upload


def delete(workshop: Workshop, file_id: FileId) -> None:
    with workshop.sessions.begin() as session:
        files.delete_file(session, workshop.caller.project_id, file_id)


def listed(workshop: Workshop, **wanted: object) -> list[FileId]:
    seen: list[FileId] = []
    while True:
        after = seen[-1] if seen else None
        with workshop.sessions() as session:
            page = files.list_files(
                session,
                workshop.caller.project_id,
                FileFilter(after=after, **wanted),  # type: ignore[arg-type]
            )
        seen += [file.id for file in page.items]
        if not page.has_more:
            return seen


def test_a_file_is_stored_as_it_came_in_pieces_of_any_size(workshop: Workshop) -> None:
    data = bytes(range(256)) * 9_000

    def pieces() -> Iterator[bytes]:
        yield b""
        yield data[:10]
        yield data[10:1_500_000]
        yield data[1_500_000:]

    with workshop.sessions.begin() as session:
        upload = Upload("x.jsonl", pieces())
        file = files.create_file(session, workshop.caller.project_id, upload, 1 << 30)
    assert (file.bytes, file.purpose) == (len(data), "batch")
    assert workshop.content(file.id) == data
    assert workshop.chunks(file.id) == 3
    digest = workshop.scalar(select(File.sha256).where(File.id == file.id))
    assert digest == hashlib.sha256(data).digest()


def test_a_file_may_have_exactly_the_limit(workshop: Workshop) -> None:
    def create(size: int) -> None:
        with workshop.sessions.begin() as session:
            files.create_file(
                session, workshop.caller.project_id, Upload("x", [b"y" * size]), 1_000
            )

    create(1_000)
    with pytest.raises(TooLarge):
        create(1_001)
    assert workshop.scalar(select(func.count()).select_from(FileChunk)) == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\lines.jsonl", "lines.jsonl"),
        ("a\0b\n\u202ec.jsonl", "abc.jsonl"),
        ("", "upload"),
        ("dir/", "upload"),
        ("x" * 300, "x" * 255),
        ("Grüße 🎈.jsonl", "Grüße 🎈.jsonl"),
    ],
)
def test_a_name_is_made_fit_to_show(given: str, shown: str) -> None:
    assert files.display_name(given) == shown


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_show_each_file_once_in_order(workshop: Workshop, ascending: bool) -> None:
    made = [workshop.make_file(b"x") for _ in range(7)]
    workshop.execute(update(File).where(File.id.in_(made[2:5])).values(created_at=func.now()))
    with workshop.sessions() as session:
        keys = (File.created_at, File.id)
        order = [key.asc() if ascending else key.desc() for key in keys]
        expected = list(session.scalars(select(File.id).order_by(*order)))
    assert listed(workshop, limit=2, ascending=ascending) == expected
    assert listed(workshop, limit=7, ascending=ascending) == expected


def test_a_list_can_be_of_one_purpose(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    workshop.drain()
    job = workshop.job(job_id)
    assert listed(workshop, purpose="batch_output") == [job.output_file_id]
    assert listed(workshop, purpose="batch") == [job.input_file_id]


def test_an_unknown_place_in_a_list_is_an_error_not_an_empty_page(workshop: Workshop) -> None:
    file_id = workshop.make_file(b"x")
    delete(workshop, file_id)
    with workshop.sessions() as session, pytest.raises(NotFound):
        files.list_files(session, workshop.caller.project_id, FileFilter(after=file_id))


def test_a_file_is_seen_by_its_own_project_only_and_not_once_gone(workshop: Workshop) -> None:
    file_id, expired = workshop.make_file(b"x"), workshop.make_file(b"x")
    other = workshop.make_caller("another").project_id
    workshop.execute(update(File).where(File.id == expired).values(expires_at=func.now()))
    with workshop.sessions.begin() as session:
        for act in (files.get_file, files.delete_file):
            with pytest.raises(NotFound):
                act(session, other, file_id)
            with pytest.raises(NotFound):
                act(session, workshop.caller.project_id, expired)
    delete(workshop, file_id)
    with pytest.raises(NotFound):
        delete(workshop, file_id)


@pytest.mark.parametrize("seconds", [3_599, 2_592_001, -1, 0])
def test_a_life_out_of_bounds_is_refused(seconds: int) -> None:
    with pytest.raises(InvalidRequest):
        files.check_expiry_seconds(seconds, "expires_after.seconds")


def test_the_input_of_a_live_job_stays_readable_and_is_purged_afterwards(
    workshop: Workshop,
) -> None:
    lines = make_items(9)
    job_id = workshop.make_job(lines)
    file_id, unused = workshop.job(job_id).input_file_id, workshop.make_file(b"x")
    kept = workshop.make_file(b"x")
    delete(workshop, file_id)
    workshop.execute(update(File).where(File.id == unused).values(expires_at=func.now()))
    workshop.tick()
    assert (workshop.chunks(file_id), workshop.chunks(unused), workshop.chunks(kept)) == (1, 0, 1)
    workshop.drain()
    assert workshop.job(job_id).totals.succeeded == 9
    workshop.tick()
    assert workshop.chunks(file_id) == 0
    assert workshop.content(workshop.job(job_id).output_file_id).count(b"\n") == 9
    assert len(workshop.usage(job_id)) == 9
