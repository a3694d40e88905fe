"""Which lines of a job take the answers of others: decided when it is made, and written once."""

from collections.abc import Callable, Collection, Iterable, Mapping
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.copy import copy_rows
from runner.db.models import Copy, Job, Model, WorkItem
from runner.domain.ids import ModelId
from runner.domain.reuse import Dedupe, Equals
from runner.services.answer_pool import Source, enter, enter_retry, fingerprint

_COPY_COLUMNS = ("job_id", "idx", "source_job_id", "source_idx")


def plan_copies(
    session: Session,
    settings: Settings,
    job: Job,
    equals: Iterable[tuple[ModelId, Equals]],
    beat: Callable[[], None],
) -> Collection[int]:
    """Have the equal lines of each model of a job that is read take one answer.

    That is the answer of an earlier job of the project if the job looks there and it stands, else
    that of the first of them. Returns the lines that take one, by ``idx``; ``beat`` is called while
    answers are looked for.
    """
    copies: dict[int, Source] = {}
    for model_id, lines in equals:
        standing: dict[int, Source] = {}
        if job.dedupe == Dedupe.PROJECT:
            mark = fingerprint(settings, session.get_one(Model, model_id))
            standing = enter(session, job, mark, lines, beat)
        copies |= standing
        for twin, first in zip(lines.twins.tolist(), lines.twin_of.tolist(), strict=True):
            copies[twin] = standing.setdefault(first, Source(job.id, first))
    _write(session, job.id, copies)
    return copies.keys()


def plan_copies_of_retry(session: Session, parent: Job, child: Job) -> Collection[int]:
    """Have the lines of a retry that were copies before be copies again.

    The other line's answer is the child's if that runs it again, else the one that it has.
    """
    if parent.dedupe == Dedupe.OFF:
        return ()
    enter_retry(session, parent.id, child.id)
    again = set(session.scalars(select(WorkItem.idx).where(WorkItem.job_id == child.id)))
    query = (
        select(Copy.idx, Copy.source_job_id, Copy.source_idx)
        .join(WorkItem, WorkItem.idx == Copy.idx)
        .where(Copy.job_id == parent.id, WorkItem.job_id == child.id)
    )
    copies = {}
    for idx, job_id, source in session.execute(query):
        is_again = job_id == parent.id and source in again
        copies[idx] = Source(child.id if is_again else job_id, source)
    _write(session, child.id, copies)
    return copies.keys()


def _write(session: Session, job_id: UUID, copies: Mapping[int, Source]) -> None:
    rows = ((job_id, idx, source.job_id, source.idx) for idx, source in copies.items())
    copy_rows(session, "copies", _COPY_COLUMNS, rows)
