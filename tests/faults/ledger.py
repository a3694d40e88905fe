"""The invariants that must hold after every fault, read straight from the database."""

from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Result, Shard, Usage, WorkItem


def check_job(session: Session, job_id: UUID) -> None:
    """Every line exactly once over both files, usage equal to the billable lines, sums equal."""
    job = session.get_one(Job, job_id)
    total = job.total_items
    results = session.execute(
        select(Result.failed, func.count(), func.count(Result.idx.distinct()))
        .where(Result.job_id == job_id)
        .group_by(Result.failed)
    ).all()
    counts = {failed: count for failed, count, _ in results}
    assert all(count == distinct for _, count, distinct in results)
    assert sum(counts.values()) == total
    assert (job.output_lines, job.error_lines) == (counts.get(False, 0), counts.get(True, 0))
    billed = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Usage.billed_nano), 0),
            func.coalesce(func.sum(Usage.output_tokens), 0),
        ).where(Usage.job_id == job_id)
    ).one()
    assert billed[0] == counts.get(False, 0)
    assert (int(billed[1]), int(billed[2])) == (job.billed_nano, job.output_tokens)
    unbilled = select(Result.idx).where(
        Result.job_id == job_id,
        ~Result.failed,
        ~select(Usage.idx).where(Usage.job_id == job_id, Usage.idx == Result.idx).exists(),
    )
    assert session.scalars(unbilled).all() == []
    leased = select(Shard).where(Shard.job_id == job_id, Shard.state.in_(("open", "leased")))
    assert session.scalars(leased).all() == []
    items = select(func.count()).where(WorkItem.job_id == job_id)
    assert session.scalar(items) == (total or 0) - job.invalid_items
