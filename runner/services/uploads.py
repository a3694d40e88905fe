"""Uploads in parts: announced, filled, and put together into a file within an hour."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, func, insert, or_, select
from sqlalchemy.orm import Session

from runner.db.models import Upload, UploadChunk, UploadPart
from runner.domain.errors import InvalidRequest, NotFound, StateConflict, TooLarge
from runner.domain.ids import PartId, ProjectId, UploadId, new_uuid
from runner.failpoints import FailPoint, hit
from runner.services import files
from runner.services.audit import record
from runner.services.files import CHUNK_BYTES, FileRecord, chunks, display_name

MAX_PART_BYTES = 64 * 1024**2
_MOST_PARTS = 10_000
_LIFE = timedelta(hours=1)
_KEPT = timedelta(days=1)  # how long the row of an ended upload can still be asked for


@dataclass(frozen=True, slots=True)
class NewUpload:
    """What a create announces."""

    filename: str
    bytes: int
    file_expires_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class UploadRecord:
    """What may be shown of an upload; ``file`` once it is completed."""

    id: UploadId
    filename: str
    bytes: int
    status: str  # pending | completed | cancelled | expired
    created_at: datetime
    expires_at: datetime
    file: FileRecord | None = None


@dataclass(frozen=True, slots=True)
class PartRecord:
    """What may be shown of a part."""

    id: PartId
    upload_id: UploadId
    created_at: datetime


def create_upload(
    session: Session, project_id: ProjectId, new: NewUpload, max_bytes: int
) -> UploadRecord:
    """Announce a file.

    Raises:
        TooLarge: this installation takes no file of that size.
    """
    if new.bytes < 1:
        raise InvalidRequest("bytes must be at least 1.", param="bytes")
    if new.bytes > max_bytes:
        raise TooLarge(
            f"The file is larger than {max_bytes:,} bytes; split it.",
            code="file_too_large",
            param="bytes",
        )
    files.check_expiry_seconds(new.file_expires_seconds, "expires_after.seconds")
    row = Upload(
        id=new_uuid(),
        project_id=project_id,
        filename=display_name(new.filename),
        size=new.bytes,
        file_expires_seconds=new.file_expires_seconds,
        expires_at=func.now() + _LIFE,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return _record_of(session, row)


def get_upload(session: Session, project_id: ProjectId, upload_id: UUID) -> UploadRecord:
    """An upload of the project."""
    return _record_of(session, _row(session, project_id, upload_id, lock=False))


def add_part(
    session: Session, project_id: ProjectId, upload_id: UUID, pieces: Iterable[bytes]
) -> PartRecord:
    """Store a part while it arrives; parts of one upload may come at the same time.

    Raises:
        TooLarge: the part, or all parts together, hold more than they may; roll back.
    """
    part = UploadPart(id=new_uuid(), upload_id=upload_id, size=0)
    session.add(part)
    session.flush()
    for chunk_no, chunk in enumerate(chunks(pieces)):
        part.size += len(chunk)
        if part.size > MAX_PART_BYTES:
            raise TooLarge(
                f"A part has at most {MAX_PART_BYTES:,} bytes.", code="part_too_large", param="data"
            )
        session.execute(insert(UploadChunk).values(part_id=part.id, chunk_no=chunk_no, data=chunk))
    if not part.size:
        raise InvalidRequest("The part is empty.", param="data")
    session.flush()
    # Locked only now that all has arrived, so that parts need not wait for each other.
    upload = _pending(session, project_id, upload_id)
    _check_room(session, upload)
    session.refresh(part)
    return PartRecord(PartId(part.id), UploadId(upload.id), part.created_at)


def complete_upload(
    session: Session,
    project_id: ProjectId,
    upload_id: UUID,
    part_ids: Sequence[UUID],
    md5: str | None = None,
) -> UploadRecord:
    """Make a file of the parts, in the order given; memory use does not depend on its size.

    Raises:
        InvalidRequest: a part is unknown or named twice, or the bytes are not those announced.
    """
    upload = _pending(session, project_id, upload_id)
    _check_parts(session, upload, part_ids)
    digest = hashlib.md5(usedforsecurity=False)
    pieces = _read_parts(session, part_ids, digest.update)
    life = upload.file_expires_seconds
    new = files.Upload(upload.filename, pieces, life)
    file = files.create_file(session, project_id, new, upload.size)
    if md5 is not None and digest.hexdigest() != md5.lower():
        raise InvalidRequest(
            f"The bytes have the MD5 {digest.hexdigest()}; upload the file again.",
            code="checksum_mismatch",
            param="md5",
        )
    hit(FailPoint.UPLOAD_JOINED)
    upload.state, upload.file_id = "completed", file.id
    _drop_parts(session, upload.id)
    session.flush()
    return _record_of(session, upload)


def cancel_upload(session: Session, project_id: ProjectId, upload_id: UUID) -> UploadRecord:
    """Give an upload up; its parts are dropped at once."""
    upload = _pending(session, project_id, upload_id)
    upload.state = "cancelled"
    _drop_parts(session, upload.id)
    record(session, "upload.cancel", str(upload.id), project_id=project_id, actor="api")
    session.flush()
    return _record_of(session, upload)


def purge_uploads(session: Session, limit: int = 20) -> int:
    """Drop what late uploads hold; returns how many were dropped for good."""
    late = select(Upload.id).where(Upload.state == "pending", Upload.expires_at <= func.now())
    session.execute(delete(UploadPart).where(UploadPart.upload_id.in_(late)))
    old = (
        select(Upload.id)
        .where(or_(Upload.state != "pending", Upload.expires_at <= func.now()))
        .where(Upload.expires_at <= func.now() - _KEPT)
        .limit(limit)
    )
    gone = session.scalars(delete(Upload).where(Upload.id.in_(old)).returning(Upload.id)).all()
    return len(gone)


def _row(session: Session, project_id: ProjectId, upload_id: UUID, *, lock: bool) -> Upload:
    query = select(Upload).where(Upload.id == upload_id, Upload.project_id == project_id)
    if lock:  # not against the foreign keys of parts on their way
        query = query.with_for_update(key_share=True).execution_options(populate_existing=True)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise NotFound("No such Upload object in this project.", param="upload_id")
    return row


def _pending(session: Session, project_id: ProjectId, upload_id: UUID) -> Upload:
    """The row of an upload that still takes parts, locked."""
    row = _row(session, project_id, upload_id, lock=True)
    status = _status(session, row)
    if status != "pending":
        raise StateConflict(
            f"The upload is {status}; begin another with POST /v1/uploads.", param="upload_id"
        )
    return row


def _status(session: Session, row: Upload) -> str:
    if row.state != "pending":
        return row.state
    return "expired" if session.scalar(select(row.expires_at <= func.now())) else "pending"


def _check_room(session: Session, upload: Upload) -> None:
    """A part that is sent again comes beside the first, so there is room for everything twice."""
    sums = select(func.count(), func.sum(UploadPart.size)).where(UploadPart.upload_id == upload.id)
    count, total = session.execute(sums).one()
    if count > _MOST_PARTS or total > 2 * upload.size + CHUNK_BYTES:
        raise TooLarge(
            f"The parts hold {total:,} bytes in {count:,} parts, far more than the {upload.size:,} "
            "bytes that were announced; cancel the upload and begin another.",
            code="upload_too_large",
            param="data",
        )


def _check_parts(session: Session, upload: Upload, part_ids: Sequence[UUID]) -> None:
    query = select(UploadPart.id, UploadPart.size).where(UploadPart.upload_id == upload.id)
    sizes = {row.id: row.size for row in session.execute(query)}
    if len(set(part_ids)) != len(part_ids) or not set(part_ids) <= set(sizes):
        raise InvalidRequest(
            "part_ids must name parts of this upload, each once.", param="part_ids"
        )
    total = sum(sizes[part_id] for part_id in part_ids)
    if total != upload.size:
        raise InvalidRequest(
            f"The parts hold {total:,} bytes, but {upload.size:,} were announced.",
            code="size_mismatch",
            param="part_ids",
        )


def _read_parts(
    session: Session, part_ids: Sequence[UUID], note: Callable[[bytes], object]
) -> Iterator[bytes]:
    for part_id in part_ids:
        chunk_no = 0
        query = select(UploadChunk.data).where(UploadChunk.part_id == part_id)
        while data := session.scalar(query.where(UploadChunk.chunk_no == chunk_no)):
            note(data)
            yield bytes(data)
            chunk_no += 1


def _drop_parts(session: Session, upload_id: UUID) -> None:
    session.execute(delete(UploadPart).where(UploadPart.upload_id == upload_id))


def _record_of(session: Session, row: Upload) -> UploadRecord:
    file = None
    if row.file_id is not None:
        try:
            file = files.get_file(session, ProjectId(row.project_id), row.file_id)
        except NotFound:  # deleted since
            file = None
    return UploadRecord(
        id=UploadId(row.id),
        filename=row.filename,
        bytes=row.size,
        status=_status(session, row),
        created_at=row.created_at,
        expires_at=row.expires_at,
        file=file,
    )
