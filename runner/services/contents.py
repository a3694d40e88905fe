"""What is inside a file: an upload's bytes, or a job's output and errors as views over its results.

Views come in line order, read in short keyset pages, so a download of any size holds a page in
memory and no transaction open. A finished view has exact bytes and an index to start anywhere.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from uuid import UUID

from sqlalchemy import ColumnElement, Text, cast, func, insert, select, text
from sqlalchemy.orm import Session

from runner.db.models import FileIndex, Job, Result, WorkItem
from runner.db.session import SessionFactory
from runner.domain.answers import unfinished_line
from runner.domain.errors import Gone
from runner.domain.ids import item_id
from runner.services.files import FileRecord, read_file
from runner.services.gone_lines import require_view

OUTPUT, ERROR = "output", "error"
INDEX_LINES = 1024  # lines of the input per entry of the byte index
_PAGE_LINES = 256
_PAGE_ITEMS = 2048  # of lines without an answer: an id each
_UNFINISHED_CODES = {"cancelled": "batch_cancelled", "expired": "batch_expired"}

NumberedLine = tuple[int, bytes]


def open_content(
    sessions: SessionFactory, file: FileRecord, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """The bytes ``[start, stop)`` of any file."""
    if file.job_id is None or file.view is None:
        return read_file(sessions, file.id, start, stop)
    with sessions() as session:
        after, position = _seek(session, file.id, start)
    lines = read_view(sessions, file.job_id, file.view, after)
    return _cut(lines, start - position, None if stop is None else stop - position)


def read_view(
    sessions: SessionFactory, job_id: UUID, view: str, after: int = -1
) -> Iterator[bytes]:
    """The lines of a job's output or errors so far, each with its newline, in line order.

    Raises:
        Gone: the view's file was deleted or has expired; told before the first line is read.
    """
    numbered = read_numbered(sessions, job_id, view, after)
    return (line for _, line in numbered)


def read_numbered(
    sessions: SessionFactory, job_id: UUID, view: str, after: int = -1
) -> Iterator[NumberedLine]:
    """The same with the number of each line."""
    with sessions() as session:
        require_view(session, job_id, view)
        code = _UNFINISHED_CODES.get(session.get_one(Job, job_id).state)
    lines = _stored(sessions, job_id, view, after)
    if view == ERROR and code is not None:
        return merge(lines, _unfinished(sessions, job_id, code, after), key=itemgetter(0))
    return lines


@dataclass(frozen=True, slots=True)
class ViewSize:
    """How much a finished view holds."""

    lines: int
    bytes: int


def index_view(session: Session, job_id: UUID, view: str, file_id: UUID, outcome: str) -> ViewSize:
    """Measure a view of a job that will not change any more, and write its byte index."""
    # Without statistics of the new rows the planner would sort whole lines to sum their lengths.
    session.execute(text("SET LOCAL enable_sort = off"))
    lines, sizes = _measure_stored(session, job_id, view)
    code = _UNFINISHED_CODES.get(outcome)
    if view == ERROR and code is not None:
        more_lines, more_sizes = _measure_unfinished(session, job_id, code)
        lines += more_lines
        sizes.update(more_sizes)
    position, entries = 0, []
    for block_no in sorted(sizes):
        entries.append({"file_id": file_id, "block_no": block_no, "byte_offset": position})
        position += sizes[block_no]
    if entries:
        session.execute(insert(FileIndex), entries)
    return ViewSize(lines, position)


def _stored(
    sessions: SessionFactory, job_id: UUID, view: str, after: int
) -> Iterator[NumberedLine]:
    while True:
        query = (
            select(Result.idx, Result.line)
            .where(Result.job_id == job_id, Result.failed.is_(view == ERROR), Result.idx > after)
            .order_by(Result.idx)
            .limit(_PAGE_LINES)
        )
        with sessions() as session:
            rows = session.execute(query).all()
        for row in rows:
            if row.line is None:
                raise Gone("The file was deleted or has expired while it was read.")
            yield row.idx, bytes(row.line)
        if len(rows) < _PAGE_LINES:
            return
        after = rows[-1].idx


def _unfinished(
    sessions: SessionFactory, job_id: UUID, code: str, after: int
) -> Iterator[NumberedLine]:
    while True:
        query = (
            select(WorkItem.idx, WorkItem.custom_id)
            .where(WorkItem.job_id == job_id, WorkItem.idx > after)
            .order_by(WorkItem.idx)
            .limit(_PAGE_ITEMS)
        )
        with sessions() as session:
            rows = session.execute(query).all()
            last = rows[-1].idx if rows else after
            # Asked apart: an anti-join would read all results of the job for each page.
            known = select(Result.idx).where(
                Result.job_id == job_id, Result.idx > after, Result.idx <= last
            )
            done = set(session.scalars(known))
        for row in rows:
            if row.idx not in done:
                yield row.idx, unfinished_line(item_id(job_id, row.idx), row.custom_id, code)
        if len(rows) < _PAGE_ITEMS:
            return
        after = last


def _measure_stored(session: Session, job_id: UUID, view: str) -> tuple[int, Counter[int]]:
    block = (Result.idx // INDEX_LINES).label("block")
    query = (
        select(block, func.count(), func.sum(func.octet_length(Result.line)))
        .where(Result.job_id == job_id, Result.failed.is_(view == ERROR))
        .group_by(block)
    )
    return _blocks(session.execute(query))


def _measure_unfinished(session: Session, job_id: UUID, code: str) -> tuple[int, Counter[int]]:
    # The line is fixed text around its number and its custom id, so its length can be summed in
    # SQL: printable custom ids are escaped alike by Postgres and by our encoder.
    fixed = len(unfinished_line(item_id(job_id, 0), "", code)) - len('0""')
    block = (WorkItem.idx // INDEX_LINES).label("block")
    length = (
        fixed
        + func.length(cast(WorkItem.idx, Text))
        + func.octet_length(cast(func.to_json(WorkItem.custom_id), Text))
    )
    query = (
        select(block, func.count(), func.sum(length))
        .where(WorkItem.job_id == job_id, _has_no_result())
        .group_by(block)
    )
    return _blocks(session.execute(query))


def _has_no_result() -> ColumnElement[bool]:
    return ~(
        select(Result.idx)
        .where(Result.job_id == WorkItem.job_id, Result.idx == WorkItem.idx)
        .exists()
    )


def _blocks(rows: Iterable[tuple[int, int, int]]) -> tuple[int, Counter[int]]:
    lines, sizes = 0, Counter[int]()
    for block_no, count, size in rows:
        lines += count
        sizes[block_no] += int(size)
    return lines, sizes


def _seek(session: Session, file_id: UUID, start: int) -> tuple[int, int]:
    """The line number before the block that holds a byte, and the byte where the block begins."""
    query = (
        select(FileIndex.block_no, FileIndex.byte_offset)
        .where(FileIndex.file_id == file_id, FileIndex.byte_offset <= start)
        .order_by(FileIndex.byte_offset.desc())
        .limit(1)
    )
    row = session.execute(query).first()
    return (row.block_no * INDEX_LINES - 1, row.byte_offset) if row else (-1, 0)


def _cut(lines: Iterable[bytes], start: int, stop: int | None) -> Iterator[bytes]:
    """The bytes ``[start, stop)`` of the lines joined."""
    position = 0
    for line in lines:
        end = position + len(line)
        if stop is not None and end >= stop:
            yield line[max(0, start - position) : stop - position]
            return
        if end > start:
            yield line[max(0, start - position) :]
        position = end
