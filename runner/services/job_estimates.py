"""The estimate of each job, model by model: given when its file was read, exact once counted,
proved at the end.

A retry's is a part of its parent's until its own lines are counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.copy import copy_rows
from runner.db.models import Job, JobEstimate, JobModel, Model, Price, Usage, WorkItem
from runner.domain.estimate import Estimate, Volume, estimate
from runner.domain.ids import ModelId
from runner.domain.outlines import Sketch
from runner.domain.progress import Done, part_of, progressed
from runner.domain.rings import Bell
from runner.domain.states import JobState
from runner.doorbell import ring
from runner.services.estimate_records import Actual, kept, read_estimate
from runner.services.job_totals import Totals, totals_by_model
from runner.services.models import price_of
from runner.services.output_lengths import note_lengths, read_lengths
from runner.services.shard_counts import COUNT_COLUMNS, has_uncounted, total_count
from runner.services.speeds import Pace, measure

_JOBS_FOR_BYTES = 5  # the newest of a project and model whose prompts were counted
_RENEWED_AT_ONCE = 200


def begin_estimates(
    session: Session, job_id: UUID, models: Sequence[JobModel], sketches: Mapping[ModelId, Sketch]
) -> None:
    """Give a job that was just read its first estimates, and have its shards counted."""
    job = session.get_one(Job, job_id)
    for each in models:
        sketch = sketches[ModelId(each.model_id)]
        computed = sketch.part(sketch.lines - each.copies) if each.copies else sketch
        _sketched(session, job, each, computed)
    _have_counted(session, job_id, models)


def begin_retry_estimates(session: Session, child: Job, models: Sequence[JobModel]) -> None:
    """Give a retry its first estimates, its lines' part of the parent's, and have it counted."""
    for each in models:
        parent = session.get(JobEstimate, (child.parent_id, each.model_id))
        if parent is None:  # it was a job of an older version: what its lines ask for is not known
            lines = sum(one.lines + one.copies for one in models)
            size = _bytes_of(session, child.id) * each.lines // lines
            _sketched(session, child, each, Sketch(each.lines, size, 0, 0, each.lines, each.lines))
            continue
        given = read_estimate(parent.given)
        prompt_bytes = -(-parent.prompt_bytes * each.lines // max(1, given.lines))
        _begin(session, child, each, part_of(given, each.lines), prompt_bytes)
    _have_counted(session, child.id, models)


def finish_count(session: Session, job_id: UUID) -> bool:
    """Once all shards are counted, make the estimates exact; True for whoever did it.

    What is given then stays: it is the word that the job's end is compared with.
    """
    query = (
        select(JobEstimate)
        .where(JobEstimate.job_id == job_id, JobEstimate.counted_at.is_(None))
        .order_by(JobEstimate.model_id)
        .with_for_update(skip_locked=True)
    )
    rows = session.scalars(query).all()
    if not rows or has_uncounted(session, job_id):
        return False
    job = session.get_one(Job, job_id)
    for row in rows:
        count = total_count(session, job_id, row.model_id)
        reused_lines = read_estimate(row.given).reused_lines
        volume = replace(count.volume(), reused_lines=reused_lines)
        row.given = kept(_given(session, job, row, volume))
        row.newest = None
        row.refused, row.too_long, row.counted_at = count.refused, count.too_long, func.now()
    session.flush()
    return True


def bytes_per_token(session: Session, project_id: UUID, model_id: UUID) -> float | None:
    """Bytes of prompts as written for each token that they came to, in the latest counted jobs.

    Not in those of which only a part was computed, or run again: its bytes are taken in proportion.
    """
    latest = (
        select(
            JobEstimate.prompt_bytes,
            JobEstimate.given["input_tokens"].as_integer().label("tokens"),
        )
        .join(Job, Job.id == JobEstimate.job_id)
        .where(
            Job.project_id == project_id,
            JobEstimate.model_id == model_id,
            JobEstimate.counted_at.is_not(None),
            func.coalesce(JobEstimate.given["reused_lines"].as_integer(), 0) == 0,
            Job.parent_id.is_(None),
        )
        .order_by(Job.id.desc())
        .limit(_JOBS_FOR_BYTES)
        .subquery()
    )
    row = session.execute(select(func.sum(latest.c.prompt_bytes), func.sum(latest.c.tokens))).one()
    return float(row[0]) / float(row[1]) if row[0] and row[1] else None


def renew_estimates(session: Session) -> None:
    """The tick's part: what is expected of running jobs now that more of them is done."""
    rows = session.execute(
        select(Job, JobEstimate, Price)
        .join(JobEstimate, JobEstimate.job_id == Job.id)
        .join(Price, Price.id == JobEstimate.price_id)
        .where(Job.state == JobState.IN_PROGRESS)
        .order_by(Job.id)
        .limit(_RENEWED_AT_ONCE)
    ).all()
    totals = totals_by_model(session, [row.Job.id for row in rows])
    paces: dict[UUID, Pace | None] = {}
    for job, row, price in rows:
        if row.model_id not in paces:
            paces[row.model_id] = measure(session, row.model_id)
        pace = paces[row.model_id]
        speed = None if pace is None else pace.before(job)
        done = _done(totals.get((job.id, row.model_id), Totals()))
        newest = progressed(read_estimate(row.given), done, price_of(price), speed)
        session.execute(
            update(JobEstimate)
            .where(
                JobEstimate.job_id == job.id,
                JobEstimate.model_id == row.model_id,
                JobEstimate.actual.is_(None),
            )
            .values(newest=kept(_dated(session, newest)))
        )


def settle_estimates(session: Session, job: Job) -> None:
    """Keep what a job that ends took, beside what was expected, and what it teaches."""
    totals = totals_by_model(session, [job.id])
    for row in session.scalars(select(JobEstimate).where(JobEstimate.job_id == job.id)):
        took = totals.get((job.id, row.model_id), Totals())
        row.actual, row.newest = kept(_actual(session, job, row.model_id, took)), None
        row.lengths = note_lengths(session, job.id, row.model_id)
    session.flush()


def _actual(session: Session, job: Job, model_id: UUID, totals: Totals) -> Actual:
    # By the ledger: a shard that was leased in the end may have followed at first.
    device_us, reused = session.execute(
        select(
            func.coalesce(func.sum(Usage.device_us), 0), func.count().filter(Usage.reused)
        ).where(Usage.job_id == job.id, Usage.model_id == model_id)
    ).one()
    run = None
    if job.in_progress_at is not None and job.finalizing_at is not None:
        run = round((job.finalizing_at - job.in_progress_at).total_seconds() * 1e6)
    return Actual(
        lines=totals.succeeded - reused,
        reused_lines=reused,
        input_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        billed_nano=totals.billed_nano,
        run_cost_nano=totals.run_cost_nano,
        device_us=int(device_us),
        run_us=run,
    )


def uncounted_jobs(session: Session) -> list[UUID]:
    """The running jobs whose prompts are not all counted yet."""
    query = (
        select(JobEstimate.job_id)
        .distinct()
        .join(Job, Job.id == JobEstimate.job_id)
        .where(JobEstimate.counted_at.is_(None), Job.state == JobState.IN_PROGRESS)
    )
    return list(session.scalars(query))


def _sketched(session: Session, job: Job, of: JobModel, sketch: Sketch) -> None:
    model = session.get_one(Model, of.model_id)
    by_bytes = bytes_per_token(session, job.project_id, model.id)
    volume = sketch.volume(model.context_length, by_bytes)
    _begin(session, job, of, volume, sketch.prompt_bytes)


def _bytes_of(session: Session, job_id: UUID) -> int:
    size = select(func.sum(WorkItem.byte_length)).where(WorkItem.job_id == job_id)
    return int(session.scalar(size) or 0)


def _begin(session: Session, job: Job, of: JobModel, volume: Volume, prompt_bytes: int) -> None:
    row = JobEstimate(
        job_id=job.id, model_id=of.model_id, price_id=of.price_id, prompt_bytes=prompt_bytes
    )
    row.given = kept(_given(session, job, row, replace(volume, reused_lines=of.copies)))
    session.add(row)
    session.flush()


def _have_counted(session: Session, job_id: UUID, models: Sequence[JobModel]) -> None:
    shards = sum(each.shards for each in models)
    copy_rows(session, "shard_counts", COUNT_COLUMNS, ((job_id, no) for no in range(shards)))
    if shards:
        ring(session, Bell.COUNT, job_id)


def _given(session: Session, job: Job, row: JobEstimate, volume: Volume) -> Estimate:
    price = price_of(session.get_one(Price, row.price_id))
    lengths = read_lengths(session, job.project_id, row.model_id, job.schedule_id)
    pace = measure(session, row.model_id)
    speed = None if pace is None else pace.before(job)
    return _dated(session, estimate(volume, price, lengths, speed))


def _dated(session: Session, told: Estimate) -> Estimate:
    return replace(told, made_at=session.scalars(select(func.now())).one())


def _done(totals: Totals) -> Done:
    return Done(
        lines=totals.succeeded + totals.failed - totals.reused,
        succeeded=totals.succeeded - totals.reused,
        reused=totals.reused,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        billed_nano=totals.billed_nano,
        run_cost_nano=totals.run_cost_nano,
    )
