"""The answers of a project that later jobs may take: found by key, among those that still stand.

Jobs that dedupe over the project put the keys of the lines here that they are to compute. What
stands is looked up in the results themselves: nothing is kept twice, and what was deleted is not
found.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import msgspec
from sqlalchemy import and_, func, insert, literal, or_, select, text
from sqlalchemy.dialects.postgresql import distinct_on
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.copy import copy_rows
from runner.db.models import AnswerKey, File, Job, Model, Result, WorkItem
from runner.domain.reuse import KEY_BYTES, Equals
from runner.services.file_life import is_visible

_KEY_COLUMNS = ("job_id", "idx", "project_id", "key")
_KEYS_AT_ONCE = 5_000
_OTHER_WAYS = ("enable_hashjoin", "enable_mergejoin", "enable_seqscan")


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


def enter(
    session: Session, job: Job, mark: bytes, lines: Equals, beat: Callable[[], None]
) -> dict[int, Source]:
    """Which of a job's lines of one model have an answer in the pool; the others are put into it.

    So each answer is there about once, however many jobs take it, and looking for it stays quick.

    Args:
        mark: the fingerprint of the model.
        beat: called every second or so, for a million lines take longer than a lease.
    """
    numbers, keys = lines.firsts.tolist(), [_hash(mark + key) for key in lines.keys]
    found: dict[int, Source] = {}
    with _by_index(session):
        for start in range(0, len(keys), _KEYS_AT_ONCE):
            part = slice(start, start + _KEYS_AT_ONCE)
            standing = _standing(session, job.project_id, keys[part])
            for number, key in zip(numbers[part], keys[part], strict=True):
                if key in standing:
                    found[number] = standing[key]
            beat()
    news = ((n, key) for n, key in zip(numbers, keys, strict=True) if n not in found)
    rows = ((job.id, number, job.project_id, key) for number, key in news)
    copy_rows(session, "answer_keys", _KEY_COLUMNS, rows)
    return found


def _standing(session: Session, project_id: UUID, keys: Sequence[bytes]) -> dict[bytes, Source]:
    """The answers that stand of those with some keys; of several the oldest."""
    query = (
        select(AnswerKey.key, AnswerKey.job_id, AnswerKey.idx)
        .ext(distinct_on(AnswerKey.key))
        .join(Result, and_(Result.job_id == AnswerKey.job_id, Result.idx == AnswerKey.idx))
        .join(Job, Job.id == AnswerKey.job_id)
        .outerjoin(File, File.id == Job.output_file_id)
        .where(
            AnswerKey.key == func.any(list(keys)),
            AnswerKey.project_id == project_id,
            Result.failed.is_(False),
            Result.line.is_not(None),
            or_(File.id.is_(None), is_visible()),  # a job that runs has no file yet
        )
        .order_by(AnswerKey.key, AnswerKey.job_id, AnswerKey.idx)
    )
    jobs: dict[UUID, UUID] = {}  # one object for each, not for each line
    return {
        bytes(key): Source(jobs.setdefault(job_id, job_id), idx)
        for key, job_id, idx in session.execute(query)
    }


@contextmanager
def _by_index(session: Session) -> Iterator[None]:
    """Have keys looked up one by one: where statistics are not those of the moment, Postgres would
    rather read the whole pool for a few of them."""
    for way in _OTHER_WAYS:
        session.execute(text(f"SET LOCAL {way} = off"))
    yield
    for way in _OTHER_WAYS:
        session.execute(text(f"SET LOCAL {way} = on"))


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
