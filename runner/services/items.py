"""The lines of a leased shard, read out of their file's chunks."""

from sqlalchemy import BigInteger, Integer, cast, func, select
from sqlalchemy.dialects.postgresql import BYTEA
from sqlalchemy.orm import Session

from runner.db.models import FileChunk, Result, WorkItem
from runner.domain.leases import ItemInput, Lease
from runner.services.files import CHUNK_BYTES


def read_items(session: Session, lease: Lease) -> list[ItemInput]:
    """The lines of a lease that have no result yet, in the shard's order.

    Postgres cuts each line out of its chunk (stored uncompressed, so only that slice is read); a
    line that crosses chunks comes in parts.
    """
    # Asked apart: an anti-join over a partition that grows while its statistics are still those of
    # an empty one reads all results of the job for each line.
    done = set(
        session.scalars(
            select(Result.idx).where(
                Result.job_id == lease.key.job_id, Result.idx == func.any(list(lease.idx))
            )
        )
    )
    wanted = [idx for idx in lease.idx if idx not in done]
    chunk_start = cast(FileChunk.chunk_no, BigInteger) * CHUNK_BYTES  # files pass two gibibytes
    end = WorkItem.byte_offset + WorkItem.byte_length
    first = cast(func.greatest(WorkItem.byte_offset - chunk_start, 0), Integer)
    length = cast(func.least(end - chunk_start, CHUNK_BYTES), Integer) - first
    part = func.substring(FileChunk.data, first + 1, length, type_=BYTEA)
    query = (
        select(WorkItem.idx, WorkItem.custom_id, part)
        .join(
            FileChunk,
            (FileChunk.file_id == lease.input_file_id)
            & FileChunk.chunk_no.between(
                WorkItem.byte_offset // CHUNK_BYTES, (end - 1) // CHUNK_BYTES
            ),
        )
        .where(
            WorkItem.job_id == lease.key.job_id,
            WorkItem.idx == func.any(wanted),
        )
        .order_by(WorkItem.idx, FileChunk.chunk_no)
    )
    parts: dict[int, tuple[str, list[bytes]]] = {}
    for idx, custom_id, piece in session.execute(query):
        parts.setdefault(idx, (custom_id, []))[1].append(bytes(piece))
    return [
        ItemInput(idx, parts[idx][0], b"".join(parts[idx][1])) for idx in wanted if idx in parts
    ]
