"""Files that are gone: refused with their reason, their bytes dropped piece by piece."""

import pytest
from sqlalchemy import ColumnElement, func, select, update
from workshop import Workshop, make_item, make_items

from runner.db.models import File, FileIndex, Result
from runner.domain.errors import Gone, NotFound
from runner.domain.ids import JobId
from runner.services import contents, files, purging, retries
from runner.services.line_errors import first_errors
from runner.services.retries import RetryLines, read_merged

LINES = [*make_items(9), make_item("bad", stream_options={})]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks of two lines at once."""
    monkeypatch.setattr(contents, "INDEX_LINES", 2)
    monkeypatch.setattr(purging, "_BLOCKS_AT_ONCE", 2)


def ended_job(workshop: Workshop) -> JobId:
    job_id = workshop.make_job(LINES, output_expires_seconds=3_600)
    workshop.drain()
    return job_id


def expire(workshop: Workshop, is_meant: ColumnElement[bool]) -> None:
    workshop.execute(update(File).where(is_meant).values(expires_at=func.now()))


def bodies(workshop: Workshop, job_id: JobId) -> list[int]:
    """The lines whose answer is still there."""
    query = select(Result.idx).where(Result.job_id == job_id, Result.line.is_not(None))
    return [row.idx for row in workshop.rows(query.order_by(Result.idx))]


@pytest.mark.usefixtures("small_pieces")
def test_answers_of_an_expired_output_go_piece_by_piece(workshop: Workshop) -> None:
    job_id = ended_job(workshop)
    expire(workshop, File.view == "output")
    left = []
    for _ in range(3):
        workshop.tick()
        left.append(bodies(workshop, job_id))
    assert left == [[4, 5, 6, 7, 8, 9], [8, 9], [9]]
    output = workshop.job(job_id).output_file_id
    assert workshop.scalar(select(File.purged_at).where(File.id == output)) is not None
    assert workshop.scalar(select(func.count()).where(FileIndex.file_id == output)) == 0
    # What each line was known by stays, and so does its bill.
    assert [row.failed for _, row in sorted(workshop.results(job_id).items())] == [False] * 9 + [
        True
    ]
    assert len(workshop.usage(job_id)) == 9
    assert workshop.job(job_id).totals.succeeded == 9


def test_a_view_that_is_gone_is_refused_with_its_reason(workshop: Workshop) -> None:
    job_id = ended_job(workshop)
    expire(workshop, File.view == "output")
    for _ in range(2):  # before its bytes are gone, and after
        with pytest.raises(Gone, match=r"^The output file expired on 20.* UTC\.$"):
            contents.read_view(workshop.sessions, job_id, "output")
        with pytest.raises(Gone):
            read_merged(workshop.sessions, job_id, "output")
        assert [name for name, _ in workshop.errors(job_id)] == ["bad"]
        workshop.tick()
    job = workshop.job(job_id)
    assert list(job.gone) == ["output"]
    with workshop.sessions() as session, pytest.raises(NotFound, match="output file expired on"):
        files.get_file(session, job.project_id, job.output_file_id)
    expire(workshop, File.view == "error")
    told = first_errors(workshop.sessions, workshop.job(job_id), 10)
    assert (told.shown, told.total) == ((), 1)


def test_what_failed_can_be_retried_after_the_answers_are_gone(workshop: Workshop) -> None:
    job_id = ended_job(workshop)
    expire(workshop, File.view.is_not(None))
    workshop.tick()
    assert bodies(workshop, job_id) == []
    with workshop.sessions.begin() as session:
        child = retries.retry_job(session, workshop.caller, job_id, RetryLines.ALL, 4)
    assert child.total == 1
