"""The invariants that must hold after every fault, read straight from the database."""

import json
import re
from collections import Counter
from uuid import UUID

from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Result, Shard, Usage, WorkItem
from runner.db.session import SessionFactory
from runner.domain.ids import ProjectId, encode
from runner.domain.states import JobState
from runner.services.contents import ERROR, OUTPUT, read_view
from runner.services.reports import job_report

Epochs = dict[tuple[UUID, int], int]


def check_job(session: Session, job_id: UUID) -> None:
    """An ended job: every line exactly once over both files, usage equal to the billable lines.

    These are I1 and I3 to I6 of the invariants: counts add up, results are fenced, the ledger is
    the bill, and nothing is left waiting.
    """
    job = session.get_one(Job, job_id)
    assert JobState(job.state).is_terminal
    total = job.total_items
    results = session.execute(
        select(Result.failed, func.count(), func.count(Result.idx.distinct()))
        .where(Result.job_id == job_id)
        .group_by(Result.failed)
    ).all()
    counts = {failed: count for failed, count, _ in results}
    assert all(count == distinct for _, count, distinct in results)
    untold = (total or 0) - sum(counts.values())
    assert untold == 0 or (untold > 0 and job.state in ("cancelled", "expired"))
    assert (job.output_lines, job.error_lines) == (
        counts.get(False, 0),
        counts.get(True, 0) + untold,
    )
    _check_ledger(session, job)
    _check_epochs(session, job_id)
    leased = select(Shard).where(Shard.job_id == job_id, Shard.state.in_(("open", "leased")))
    assert session.scalars(leased).all() == []
    items = select(func.count()).where(WorkItem.job_id == job_id)
    assert session.scalar(items) == (total or 0) - job.invalid_items


def _check_ledger(session: Session, job: Job) -> None:
    """One row per billable result, and the same sums wherever they are told."""
    billed = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Usage.billed_nano), 0),
            func.coalesce(func.sum(Usage.output_tokens), 0),
        ).where(Usage.job_id == job.id)
    ).one()
    assert billed[0] == job.output_lines
    assert (int(billed[1]), int(billed[2])) == (job.billed_nano, job.output_tokens)
    report = job_report(session, ProjectId(job.project_id), job.id)
    assert report.account.lines == billed[0]
    assert report.job.totals.billed_nano == int(billed[1])
    unbilled = select(Result.idx).where(
        Result.job_id == job.id,
        ~Result.failed,
        ~select(Usage.idx).where(Usage.job_id == job.id, Usage.idx == Result.idx).exists(),
    )
    assert session.scalars(unbilled).all() == []


def _check_epochs(session: Session, job_id: UUID) -> None:
    """Each result was written under a lease of a shard that holds the line."""
    shards = session.scalars(select(Shard).where(Shard.job_id == job_id)).all()
    highest = Counter[int]()
    for shard in shards:
        for idx in shard.idx:
            highest[idx] = max(highest[idx], shard.epoch)
    for idx, epoch in session.execute(select(Result.idx, Result.epoch).filter_by(job_id=job_id)):
        assert 0 <= epoch <= highest[idx]


def check_files(sessions: SessionFactory, job_id: UUID) -> dict[str, bytes]:
    """I2: each custom id exactly once over both files. Returns them, as told without ids."""
    found = Counter[str]()
    files = {}
    with sessions() as session:
        job = session.get_one(Job, job_id)
    for view, lines in ((OUTPUT, job.output_lines), (ERROR, job.error_lines)):
        rows = list(read_view(sessions, job_id, view))
        assert len(rows) == lines
        found.update(json.loads(row)["custom_id"] for row in rows)
        files[view] = without_ids(b"".join(rows), job_id)
    assert len(found) == job.total_items
    assert set(found.values()) == {1}
    return files


def without_ids(content: bytes, job_id: UUID) -> bytes:
    """A file without what tells its job apart from another of the same lines."""
    nameless = content.replace(encode("", job_id).encode(), b"JOB")
    return re.sub(rb'"created":\d+', b'"created":0', nameless)


def epochs_of(session: Session, former: Epochs) -> Epochs:
    """I7: the fencing tokens of all shards; none has fallen since ``former``, none has gone."""
    if not inspect(session.connection()).has_table(Shard.__tablename__):
        return {}  # a crash before the first migration was committed
    rows = session.execute(select(Shard.job_id, Shard.shard_no, Shard.epoch))
    epochs = {(row.job_id, row.shard_no): row.epoch for row in rows}
    assert all(epochs.get(shard, -1) >= epoch for shard, epoch in former.items())
    return epochs
