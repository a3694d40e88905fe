"""The bytes of files that were deleted or have expired: dropped piece by piece.

What a file is known by stays: its name, its size, and of a job's lines that they succeeded or
failed. Each piece is small, so that a tick holds nobody up for long, and the next goes on.
"""

from sqlalchemy import delete, func, select, tuple_, update
from sqlalchemy.orm import Session

from runner.db.models import File, FileChunk, FileIndex, Job, Result
from runner.domain.states import LIVE_JOB_STATES
from runner.services import contents
from runner.services.contents import ERROR
from runner.services.file_life import is_visible

_FILES_AT_ONCE = 16
_CHUNKS_AT_ONCE = 64  # of a mebibyte
_BLOCKS_AT_ONCE = 16  # of an index: some thousand lines


def purge_gone(session: Session) -> None:
    """Drop one more piece of some files that are gone and that no live job reads."""
    live = select(Job.input_file_id).where(Job.state.in_(LIVE_JOB_STATES))
    query = (
        select(File)
        .where(File.purged_at.is_(None), ~is_visible(), File.id.not_in(live))
        .limit(_FILES_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    for file in session.scalars(query).all():
        dropped, at_once = (
            (_drop_chunks(session, file), _CHUNKS_AT_ONCE)
            if file.view is None
            else (_drop_lines(session, file), _BLOCKS_AT_ONCE)
        )
        if dropped < at_once:
            file.purged_at = func.now()


def _drop_chunks(session: Session, file: File) -> int:
    """Drop the first chunks of an upload; returns how many there were."""
    first = (
        select(FileChunk.file_id, FileChunk.chunk_no)
        .where(FileChunk.file_id == file.id)
        .order_by(FileChunk.chunk_no)
        .limit(_CHUNKS_AT_ONCE)
    )
    place = tuple_(FileChunk.file_id, FileChunk.chunk_no)
    gone = session.scalars(delete(FileChunk).where(place.in_(first)).returning(FileChunk.chunk_no))
    return len(gone.all())


def _drop_lines(session: Session, file: File) -> int:
    """Take the first blocks of a view out of its index, and the lines in them out of the results.

    The index is the list of what is left to do; returns how many of its blocks were done.
    """
    first = (
        select(FileIndex.block_no)
        .where(FileIndex.file_id == file.id)
        .order_by(FileIndex.block_no)
        .limit(_BLOCKS_AT_ONCE)
    )
    blocks = session.scalars(first).all()
    if blocks:
        session.execute(
            update(Result)
            .where(
                Result.job_id == file.job_id,
                Result.idx >= blocks[0] * contents.INDEX_LINES,
                Result.idx < (blocks[-1] + 1) * contents.INDEX_LINES,
                Result.failed.is_(file.view == ERROR),
            )
            .values(line=None)
        )
        session.execute(
            delete(FileIndex).where(FileIndex.file_id == file.id, FileIndex.block_no.in_(blocks))
        )
    return len(blocks)
