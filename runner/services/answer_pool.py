"""The answers of a project that later jobs may take: found by key, among those that still stand.

Jobs that dedupe over the project put the keys of their lines here when they are read. What stands
is looked up in the results themselves: nothing is kept twice, and what was deleted is not found.
"""

import hashlib
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import and_, insert, literal, or_, select
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session, aliased

from runner.config import Settings
from runner.db.copy import copy_rows
from runner.db.models import AnswerKey, File, Job, Model, Result, WorkItem
from runner.domain.reuse import KEY_BYTES, Equals
from runner.services.file_life import is_visible

_KEY_COLUMNS = ("job_id", "idx", "project_id", "key")


@dataclass(frozen=True, slots=True)
class Source:
    """A line that has an answer, or will have one."""

    job_id: UUID
    idx: int


def fingerprint(settings: Settings, model: Model) -> bytes:
    """What an answer hangs on beside its line: the weights, and how this installation runs them."""
    weights = sorted(model.manifest.items()) or model.path
    numbers = (settings.dtype, sorted(settings.quantize))
    told = msgspec.json.encode([str(model.id), weights, model.context_length, numbers])
    return _hash(told)


def enter(session: Session, job: Job, mark: bytes, lines: Equals) -> dict[int, Source]:
    """Put a job's lines of one model into the pool; tells which answers stand there already.

    ``mark`` is the fingerprint of the model. Of several answers the oldest is told: it is
    most likely the one that was computed.
    """
    rows = (
        (job.id, number, job.project_id, _hash(mark + key))
        for number, key in zip(lines.firsts.tolist(), lines.keys, strict=True)
    )
    copy_rows(session, "answer_keys", _KEY_COLUMNS, rows)
    known = aliased(AnswerKey)
    query = (
        select(AnswerKey.idx, known.job_id, known.idx)
        .ext(distinct_on(AnswerKey.idx))
        .join(known, and_(known.key == AnswerKey.key, known.project_id == AnswerKey.project_id))
        .join(Result, and_(Result.job_id == known.job_id, Result.idx == known.idx))
        .join(Job, Job.id == known.job_id)
        .outerjoin(File, File.id == Job.output_file_id)
        .where(
            AnswerKey.job_id == job.id,
            known.job_id != job.id,
            Result.failed.is_(False),
            Result.line.is_not(None),
            or_(File.id.is_(None), is_visible()),  # a job that runs has no file yet
        )
        .order_by(AnswerKey.idx, known.job_id, known.idx)
    )
    return {idx: Source(job_id, source) for idx, job_id, source in session.execute(query)}


def enter_retry(session: Session, parent_id: UUID, child_id: UUID) -> None:
    """Put the lines of a retry into the pool by the keys that its parent's have, if any."""
    keys = (
        select(literal(child_id), AnswerKey.idx, AnswerKey.project_id, AnswerKey.key)
        .join(WorkItem, WorkItem.idx == AnswerKey.idx)
        .where(AnswerKey.job_id == parent_id, WorkItem.job_id == child_id)
    )
    session.execute(insert(AnswerKey).from_select(_KEY_COLUMNS, keys))


def _hash(told: bytes) -> bytes:
    return hashlib.blake2b(told, digest_size=KEY_BYTES).digest()
