"""How fast a model runs now: device time per token, live workers, and the queue before a job."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import ColumnElement, Double, cast, func, select, true
from sqlalchemy.orm import Session

from runner.db.models import Job, JobEstimate, JobModel, Shard, Usage, Worker
from runner.domain.estimate import Speed
from runner.domain.speeds import Samples, fit_speed
from runner.domain.states import LIVE_WORKER_STATES, JobState
from runner.services.job_totals import Totals, totals_by_model

_JOBS_SAMPLED = 5  # the newest of a model
_SHARDS_SAMPLED = 16  # of each


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A job in the queue: its place, and the device time that it still wants."""

    job_id: UUID
    priority: int
    expires_at: datetime
    left_us: int


@dataclass(frozen=True, slots=True)
class Pace:
    """How a model runs at one moment, for the ends of all its jobs."""

    input_ns: int
    output_ns: int
    workers: int
    queue: tuple[_Waiting, ...]

    def before(self, job: Job) -> Speed:
        """The speed for a job: ahead of it is what is more urgent, or as urgent and due earlier."""
        ahead = sum(
            other.left_us
            for other in self.queue
            if other.job_id != job.id
            and (-other.priority, other.expires_at) < (-job.priority, job.expires_at)
        )
        return Speed(self.input_ns, self.output_ns, self.workers, ahead)

    def after_all(self) -> Speed:
        """The speed for a job that does not exist yet: all that waits is ahead of it."""
        ahead = sum(other.left_us for other in self.queue)
        return Speed(self.input_ns, self.output_ns, self.workers, ahead)


def measure(session: Session, model_id: UUID) -> Pace | None:
    """The pace of a model by its latest lines: those of live workers, else of any.

    None if no line of the model was ever billed.
    """
    live = (Worker.model_id == model_id, Worker.state.in_(LIVE_WORKER_STATES))
    workers = session.scalars(select(Worker.id).where(*live)).all()
    lines = _latest_lines(session, model_id)
    fitted = fit_speed(_samples(session, lines, Usage.worker_id.in_(workers))) if workers else None
    fitted = fitted or fit_speed(_samples(session, lines, true()))
    if fitted is None:
        return None
    return Pace(*fitted, workers=len(workers), queue=_queue(session, model_id))


def _latest_lines(session: Session, model_id: UUID) -> dict[UUID, list[int]]:
    """The lines of the last computed shards of the model's newest jobs, by job.

    Found by their shards: those of another model or worker, or that were copied, may lie before
    them in a ledger of a million rows.
    """
    jobs = (
        select(JobModel.job_id)
        .where(JobModel.model_id == model_id)
        .order_by(JobModel.job_id.desc())
        .limit(_JOBS_SAMPLED)
        .subquery()
    )
    shards = (
        select(Shard.idx)
        .where(
            Shard.job_id == jobs.c.job_id,
            Shard.model_id == model_id,
            Shard.epoch > 0,
            Shard.succeeded > 0,
        )
        .order_by(Shard.shard_no.desc())
        .limit(_SHARDS_SAMPLED)
        .lateral()
    )
    found: dict[UUID, list[int]] = {}
    for job_id, idx in session.execute(select(jobs.c.job_id, shards.c.idx).join(shards, true())):
        found.setdefault(job_id, []).extend(idx)
    return found


def _samples(
    session: Session, lines: Mapping[UUID, Sequence[int]], is_meant: ColumnElement[bool]
) -> Samples:
    """The sums of some lines that were computed, as far as they are meant."""
    # As floating numbers: products of tokens and microseconds pass what an integer holds.
    x = cast(Usage.prompt_tokens - Usage.cached_tokens, Double)
    y, t = cast(Usage.output_tokens, Double), cast(Usage.device_us, Double)
    terms = (x, y, t, x * x, x * y, y * y, x * t, y * t)
    query = select(*(func.coalesce(func.sum(term), 0) for term in terms))
    total = [0.0] * len(terms)
    for job_id, idx in lines.items():
        ours = (Usage.job_id == job_id, Usage.idx == func.any(idx), ~Usage.reused, is_meant)
        sums = session.execute(query.where(*ours)).one()
        total = [one + float(more) for one, more in zip(total, sums, strict=True)]
    return Samples(*total)


def _queue(session: Session, model_id: UUID) -> tuple[_Waiting, ...]:
    """The jobs of a model that run or wait, with the device time that they are expected to want."""
    rows = session.execute(
        select(Job, JobModel.lines, JobEstimate.newest, JobEstimate.given)
        .join(JobModel, JobModel.job_id == Job.id)
        .join(
            JobEstimate,
            (JobEstimate.job_id == Job.id) & (JobEstimate.model_id == JobModel.model_id),
        )
        .where(
            JobModel.model_id == model_id,
            Job.state == JobState.IN_PROGRESS,
            Job.paused_at.is_(None),
        )
    ).all()
    totals = totals_by_model(session, [row.Job.id for row in rows])
    queue = []
    for job, lines, newest, given in rows:
        done = totals.get((job.id, model_id), Totals())
        left = max(0, lines - done.succeeded - done.failed + done.reused)
        device = (newest or given).get("device_us")
        if device is not None:
            # The newest estimate is of what is left already.
            left_us = device["likely"] if newest else device["likely"] * left // max(1, lines)
            queue.append(_Waiting(job.id, job.priority, job.expires_at, left_us if left else 0))
    return tuple(queue)
