"""The lines of a leased shard, read out of their file's chunks."""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import BigInteger, Integer, cast, func, select
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.orm import Session

from runner.db.models import FileChunk, Result, WorkItem
from runner.domain.leases import ItemInput, Lease
from runner.services.files import CHUNK_BYTES


def read_items(session: Session, lease: Lease) -> list[ItemInput]:
    """The lines of a lease that have no result yet, in the shard's order."""
    return read_lines(session, lease.key.job_id, lease.input_file_id, lease.idx)


def read_lines(
    session: Session, job_id: UUID, file_id: UUID, idx: Sequence[int]
) -> list[ItemInput]:
    """Those of some lines of a job's file that have no result yet, in the order asked for."""
    # Asked apart: an anti-join over a partition that grows while its statistics are still those of
    # an empty one reads all results of the job for each line.
    done = set(
        session.scalars(
            select(Result.idx).where(Result.job_id == job_id, Result.idx == func.any(list(idx)))
        )
    )
    return read_all_lines(session, job_id, file_id, [n for n in idx if n not in done])


def read_all_lines(
    session: Session, job_id: UUID, file_id: UUID, wanted: Sequence[int]
) -> list[ItemInput]:
    """Some lines of a job's file, done or not, in the order asked for; what is gone is left out.

    Postgres cuts each line out of its chunk (stored uncompressed, so only that slice is read); a
    line that crosses chunks comes in parts.
    """
    chunk_start = cast(FileChunk.chunk_no, BigInteger) * CHUNK_BYTES  # files pass two gibibytes
    end = WorkItem.byte_offset + WorkItem.byte_length
    first = cast(func.greatest(WorkItem.byte_offset - chunk_start, 0), Integer)
    length = cast(func.least(end - chunk_start, CHUNK_BYTES), Integer) - first
    part = func.substring(FileChunk.data, first + 1, length, type_=BYTEA)
    query = (
        select(WorkItem.idx, WorkItem.custom_id, part)
        .join(
            FileChunk,
            (FileChunk.file_id == file_id)
            & FileChunk.chunk_no.between(
                WorkItem.byte_offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
            ),
        )
        .where(
            WorkItem.job_id == job_id,
            WorkItem.idx == func.any(list(wanted)),
        )
        .order_by(WorkItem.idx, FileChunk.chunk_no)
    )
    parts: dict[int, tuple[str, list[bytes]]] = {}
    for number, custom_id, piece in session.execute(query):
        parts.setdefault(number, (custom_id, []))[1].append(bytes(piece))
    return [
        ItemInput(number, parts[number][0], b"".join(parts[number][1]))
        for number in wanted
        if number in parts
    ]
