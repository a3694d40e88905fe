"""The estimate of each job: given when its file was read, exact once counted, proved at the end.

A retry's is a part of its parent's until its own lines are counted.
"""

from dataclasses import replace
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.copy import copy_rows
from runner.db.models import Job, JobEstimate, Model, Price, Usage, WorkItem
from runner.domain.estimate import Estimate, Volume, estimate
from runner.domain.outlines import Sketch
from runner.domain.progress import Done, part_of, progressed
from runner.domain.states import JobState
from runner.doorbell import Bell, ring
from runner.services.estimate_records import Actual, kept, read_estimate
from runner.services.job_records import Totals, running_totals
from runner.services.models import price_of
from runner.services.output_lengths import note_lengths, read_lengths
from runner.services.shard_counts import COUNT_COLUMNS, has_uncounted, total_count
from runner.services.speeds import Pace, measure

_JOBS_FOR_BYTES = 5  # the newest of a project and model whose prompts were counted
_RENEWED_AT_ONCE = 200


def begin_estimate(session: Session, job: Job, price_id: UUID, sketch: Sketch, shards: int) -> None:
    """Give a job that was just read its first estimate, and have its shards counted."""
    model = session.get_one(Model, job.model_id)
    volume = sketch.volume(model.context_length, bytes_per_token(session, job.project_id, model.id))
    _begin(session, job, price_id, volume, sketch.prompt_bytes)
    _have_counted(session, job, shards)


def begin_retry_estimate(
    session: Session, child: Job, price_id: UUID, lines: int, shards: int
) -> None:
    """Give a retry its first estimate, its lines' part of the parent's, and have it counted."""
    parent = session.get(JobEstimate, child.parent_id)
    if parent is None:  # it was a job of an older version: what its lines ask for is not known
        size = select(func.sum(WorkItem.byte_length)).where(WorkItem.job_id == child.id)
        most = Sketch(lines, int(session.scalar(size) or 0), 0, 0, lines, lines)
        begin_estimate(session, child, price_id, most, shards)
        return
    given = read_estimate(parent.given)
    prompt_bytes = -(-parent.prompt_bytes * lines // max(1, given.lines))
    _begin(session, child, price_id, part_of(given, lines), prompt_bytes)
    _have_counted(session, child, shards)


def finish_count(session: Session, job_id: UUID) -> bool:
    """Once all shards are counted, make the estimate exact; True for whoever did it.

    What is given then stays: it is the word that the job's end is compared with.
    """
    query = (
        select(JobEstimate)
        .where(JobEstimate.job_id == job_id, JobEstimate.counted_at.is_(None))
        .with_for_update(skip_locked=True)
    )
    row = session.scalars(query).one_or_none()
    if row is None or has_uncounted(session, job_id):
        return False
    count = total_count(session, job_id)
    job, price = session.get_one(Job, job_id), session.get_one(Price, row.price_id)
    row.given = kept(_given(session, job, price, count.volume()))
    row.newest = None
    row.refused, row.too_long, row.counted_at = count.refused, count.too_long, func.now()
    session.flush()
    return True


def bytes_per_token(session: Session, project_id: UUID, model_id: UUID) -> float | None:
    """Bytes of prompts as written for each token that they came to, in the latest counted jobs."""
    latest = (
        select(
            JobEstimate.prompt_bytes,
            JobEstimate.given["input_tokens"].as_integer().label("tokens"),
        )
        .join(Job, Job.id == JobEstimate.job_id)
        .where(
            Job.project_id == project_id,
            Job.model_id == model_id,
            JobEstimate.counted_at.is_not(None),
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
    totals = running_totals(session, [row.Job.id for row in rows])
    paces: dict[UUID | None, Pace | None] = {}
    for job, row, price in rows:
        if job.model_id not in paces:
            paces[job.model_id] = measure(session, job.model_id) if job.model_id else None
        pace = paces[job.model_id]
        speed = None if pace is None else pace.before(job)
        done = _done(totals.get(job.id, Totals()))
        newest = progressed(read_estimate(row.given), done, price_of(price), speed)
        session.execute(
            update(JobEstimate)
            .where(JobEstimate.job_id == job.id, JobEstimate.actual.is_(None))
            .values(newest=kept(_dated(session, newest)))
        )


def settle_estimate(session: Session, job: Job, totals: Totals) -> None:
    """Keep what a job that ends took, beside what was expected, and what it teaches."""
    row = session.get(JobEstimate, job.id)
    if row is None:
        return
    device_us = session.scalar(
        select(func.coalesce(func.sum(Usage.device_us), 0)).where(Usage.job_id == job.id)
    )
    run = None
    if job.in_progress_at is not None and job.finalizing_at is not None:
        run = round((job.finalizing_at - job.in_progress_at).total_seconds() * 1e6)
    actual = Actual(
        lines=totals.succeeded,
        input_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        billed_nano=totals.billed_nano,
        run_cost_nano=totals.run_cost_nano,
        device_us=int(device_us or 0),
        run_us=run,
    )
    row.actual, row.newest, row.lengths = kept(actual), None, note_lengths(session, job.id)
    session.flush()


def uncounted_jobs(session: Session) -> list[UUID]:
    """The running jobs whose prompts are not all counted yet."""
    query = (
        select(JobEstimate.job_id)
        .join(Job, Job.id == JobEstimate.job_id)
        .where(JobEstimate.counted_at.is_(None), Job.state == JobState.IN_PROGRESS)
    )
    return list(session.scalars(query))


def _begin(session: Session, job: Job, price_id: UUID, volume: Volume, prompt_bytes: int) -> None:
    price = session.get_one(Price, price_id)
    session.add(
        JobEstimate(
            job_id=job.id,
            price_id=price_id,
            prompt_bytes=prompt_bytes,
            given=kept(_given(session, job, price, volume)),
        )
    )
    session.flush()


def _have_counted(session: Session, job: Job, shards: int) -> None:
    copy_rows(session, "shard_counts", COUNT_COLUMNS, ((job.id, no) for no in range(shards)))
    ring(session, Bell.COUNT, job.id)


def _given(session: Session, job: Job, price: Price, volume: Volume) -> Estimate:
    assert job.model_id is not None
    lengths = read_lengths(session, job.project_id, job.model_id, job.schedule_id)
    pace = measure(session, job.model_id)
    speed = None if pace is None else pace.before(job)
    return _dated(session, estimate(volume, price_of(price), lengths, speed))


def _dated(session: Session, told: Estimate) -> Estimate:
    return replace(told, made_at=session.scalars(select(func.now())).one())


def _done(totals: Totals) -> Done:
    return Done(
        lines=totals.succeeded + totals.failed,
        succeeded=totals.succeeded,
        prompt_tokens=totals.prompt_tokens,
        cached_tokens=totals.cached_tokens,
        output_tokens=totals.output_tokens,
        billed_nano=totals.billed_nano,
        run_cost_nano=totals.run_cost_nano,
    )
