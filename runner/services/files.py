"""Uploaded files: chunks in the database, written and read as streams."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, insert, select, tuple_, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runner.db.models import File, FileChunk, Job
from runner.db.session import SessionFactory
from runner.domain.errors import InvalidRequest, NotFound, TooLarge
from runner.domain.ids import FileId, JobId, ProjectId, new_uuid
from runner.domain.tags import check_tags
from runner.failpoints import FailPoint, hit
from runner.services.audit import record
from runner.services.file_life import is_visible, removed, why_gone
from runner.services.pages import Page, cut
from runner.services.repeats import key_reused
from runner.services.retention_rule import input_life

CHUNK_BYTES = 1024**2
INPUT_PURPOSE = "batch"
OUTPUT_PURPOSE = "batch_output"
_FILENAME_LETTERS = 255
SHORTEST_LIFE, LONGEST_LIFE = 3_600, 2_592_000  # seconds that a caller may ask for


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What may be shown of a file. ``job_id`` and ``view`` are set on a job's output and errors."""

    id: FileId
    project_id: ProjectId
    purpose: str
    filename: str
    bytes: int
    job_id: JobId | None
    view: str | None
    created_at: datetime
    expires_at: datetime | None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Upload:
    """A file on its way in. ``pieces`` is read once, to its end."""

    filename: str
    pieces: Iterable[bytes]
    expires_seconds: int | None = None
    idempotency_key: str | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FileFilter:
    """Which files a list shows, and in which order."""

    purpose: str | None = None
    tag: str | None = None
    after: FileId | None = None
    limit: int = 10_000
    ascending: bool = False


def create_file(
    session: Session, project_id: ProjectId, upload: Upload, max_bytes: int
) -> FileRecord:
    """Store an upload chunk by chunk; memory use does not depend on its size.

    A repeat of an upload (same idempotency key, same bytes) leaves nothing and returns the file
    that the first one made.

    Raises:
        TooLarge: more than ``max_bytes``; the caller's transaction must be rolled back.
        InvalidRequest: the idempotency key was used for other bytes.
    """
    if upload.idempotency_key is None:
        return _store(session, project_id, upload, max_bytes)
    attempt = session.begin_nested()
    file = _store(session, project_id, upload, max_bytes)
    row = session.get_one(File, file.id)
    earlier = _file_of_key(session, project_id, upload.idempotency_key)
    if earlier is None:
        try:
            with session.begin_nested():
                row.idempotency_key = upload.idempotency_key
        except IntegrityError:  # a moment earlier
            earlier = _file_of_key(session, project_id, upload.idempotency_key)
    sent = (row.sha256, row.filename)
    if earlier is None:
        attempt.commit()
        return file
    attempt.rollback()
    if (earlier.sha256, earlier.filename) != sent:
        raise key_reused("file")
    return record_of(earlier)


def _file_of_key(session: Session, project_id: ProjectId, key: str) -> File | None:
    query = select(File).where(File.project_id == project_id, File.idempotency_key == key)
    return session.scalars(query).one_or_none()


def _store(session: Session, project_id: ProjectId, upload: Upload, max_bytes: int) -> FileRecord:
    file_id = new_uuid()
    asked = upload.expires_seconds
    life = timedelta(seconds=asked) if asked else input_life(session)
    row = File(
        id=file_id,
        project_id=project_id,
        purpose=INPUT_PURPOSE,
        filename=display_name(upload.filename),
        size=0,
        tags=check_tags(upload.tags),
        expires_at=func.now() + life,
    )
    session.add(row)
    session.flush()
    digest = hashlib.sha256()
    size = 0
    for chunk_no, chunk in enumerate(chunks(upload.pieces)):
        size += len(chunk)
        if size > max_bytes:
            raise TooLarge(
                f"The file is larger than {max_bytes:,} bytes; split it.",
                code="file_too_large",
                param="file",
            )
        digest.update(chunk)
        session.execute(insert(FileChunk).values(file_id=file_id, chunk_no=chunk_no, data=chunk))
        hit(FailPoint.UPLOAD_BETWEEN_CHUNKS)
    row.size, row.sha256 = size, digest.digest()
    session.flush()
    session.refresh(row)
    record(session, "file.create", str(file_id), project_id=project_id, actor="api")
    hit(FailPoint.UPLOAD_BEFORE_COMMIT)
    return record_of(row)


def get_file(session: Session, project_id: ProjectId, file_id: UUID) -> FileRecord:
    """A file of the project that is neither deleted nor expired."""
    return record_of(visible_file(session, project_id, file_id))


def visible_file(session: Session, project_id: ProjectId, file_id: UUID) -> File:
    """The row of a file of the project that is neither deleted nor expired."""
    query = select(File, is_visible(), Job.lines_removed_at).outerjoin(Job, Job.id == File.job_id)
    found = session.execute(
        query.where(File.id == file_id, File.project_id == project_id)
    ).one_or_none()
    if found is None:
        raise NotFound("No such File object in this project.", param="id")
    row, is_here, removed_at = found
    if not is_here:
        reason = why_gone(row) if removed_at is None else removed(removed_at)
        raise NotFound(reason, param="id")
    return row


def list_files(session: Session, project_id: ProjectId, wanted: FileFilter) -> Page[FileRecord]:
    """A page of the project's files, newest first unless ``ascending``."""
    query = select(File).where(File.project_id == project_id, is_visible())
    if wanted.purpose is not None:
        query = query.where(File.purpose == wanted.purpose)
    if wanted.tag is not None:
        query = query.where(File.tags.contains([wanted.tag]))
    if wanted.after is not None:
        cursor = visible_file(session, project_id, wanted.after)
        place = tuple_(File.created_at, File.id)
        here = (cursor.created_at, cursor.id)
        query = query.where(place > here if wanted.ascending else place < here)
    keys = (File.created_at, File.id)
    order = [key.asc() if wanted.ascending else key.desc() for key in keys]
    rows = session.scalars(query.order_by(*order).limit(wanted.limit + 1)).all()
    return cut([record_of(row) for row in rows], wanted.limit)


def tag_file(
    session: Session, project_id: ProjectId, file_id: UUID, tags: Iterable[str]
) -> FileRecord:
    """Give an uploaded file these tags and no others."""
    row = visible_file(session, project_id, file_id)
    row.tags = check_tags(tags)
    session.flush()
    record(session, "file.tag", str(row.id), project_id=project_id, actor="api")
    return record_of(row)


def newest_with_tag(session: Session, project_id: ProjectId, tag: str) -> FileId | None:
    """The input that came last of those with a tag."""
    wanted = FileFilter(purpose=INPUT_PURPOSE, tag=tag, limit=1)
    found = list_files(session, project_id, wanted).items
    return found[0].id if found else None


def keep(session: Session, project_id: ProjectId, file_id: UUID) -> None:
    """Let a file live until it is deleted: a schedule reads it for as long as there is one."""
    visible_file(session, project_id, file_id).expires_at = None


def let_expire(session: Session, file_id: UUID) -> None:
    """Give a file that was kept the life of any other, from now on."""
    session.execute(
        update(File)
        .where(File.id == file_id, File.expires_at.is_(None))
        .values(expires_at=func.now() + input_life(session))
    )


def names_of(session: Session, file_ids: Iterable[UUID]) -> dict[UUID, str]:
    """The names of files by id, also of those that are gone."""
    query = select(File.id, File.filename).where(File.id.in_(list(file_ids)))
    return {row.id: row.filename for row in session.execute(query)}


def names_of_inputs(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, str]:
    """The names of the input files of jobs, by job."""
    query = select(Job.id, File.filename).join(File, File.id == Job.input_file_id)
    return {row.id: row.filename for row in session.execute(query.where(Job.id.in_(list(job_ids))))}


def delete_file(session: Session, project_id: ProjectId, file_id: UUID) -> None:
    """Hide a file at once; its bytes go once no live job needs them."""
    row = visible_file(session, project_id, file_id)
    session.execute(
        update(File).where(File.id == row.id).values(deleted_at=func.now(), idempotency_key=None)
    )
    record(session, "file.delete", str(row.id), project_id=project_id, actor="api")


def read_file(
    sessions: SessionFactory, file_id: UUID, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """The bytes ``[start, stop)`` of an uploaded file, a chunk at a time, each read by itself."""
    chunk_no = start // CHUNK_BYTES
    position = chunk_no * CHUNK_BYTES
    while stop is None or position < stop:
        query = select(FileChunk.data).where(
            FileChunk.file_id == file_id, FileChunk.chunk_no == chunk_no
        )
        with sessions() as session:
            data = session.scalars(query).one_or_none()
        if data is None:
            return
        first = max(0, start - position)
        last = len(data) if stop is None else min(len(data), stop - position)
        yield bytes(data[first:last])
        position += len(data)
        chunk_no += 1


def check_expiry_seconds(seconds: int | None, param: str) -> None:
    """The contract's bounds of a file's life: one hour to thirty days."""
    if seconds is not None and not SHORTEST_LIFE <= seconds <= LONGEST_LIFE:
        raise InvalidRequest(
            f"{param} must be between {SHORTEST_LIFE} and {LONGEST_LIFE} "
            "(one hour to thirty days).",
            param=param,
        )


def record_of(row: File) -> FileRecord:
    """What may be shown of a row."""
    return FileRecord(
        id=FileId(row.id),
        project_id=ProjectId(row.project_id),
        purpose=row.purpose,
        filename=row.filename,
        bytes=row.size,
        job_id=JobId(row.job_id) if row.job_id else None,
        view=row.view,
        created_at=row.created_at,
        expires_at=row.expires_at,
        tags=tuple(row.tags),
    )


def chunks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Regroup pieces of any size into chunks of ``CHUNK_BYTES``."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= CHUNK_BYTES:
            yield bytes(held[:CHUNK_BYTES])
            del held[:CHUNK_BYTES]
    if held:
        yield bytes(held)


def display_name(name: str) -> str:
    """A name fit to show: no path, no control or direction characters, at most 255 letters."""
    base = name.replace("\\", "/").rsplit("/", 1)[-1]
    shown = "".join(letter for letter in base if letter.isprintable())
    return shown[:_FILENAME_LETTERS] or "upload"
