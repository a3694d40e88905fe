"""Promises of jobs that will not be kept: told once for each kind, while something can be done.

A job's need is what the ledger says: device time per line, of its own lines or of its model's. The
engine workers of a model do the work of its jobs in the order in which they lease it, so the
forecast is optimistic: it leaves out loads, idle ends, and jobs that are still to come.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import (
    Alert,
    Job,
    JobAccount,
    JobModel,
    LatencyDay,
    Model,
    Shard,
    UsageDay,
    Worker,
)
from runner.domain.ids import ModelId
from runner.domain.latency import Measure, percentiles_of
from runner.domain.states import COMPUTED_SHARD_STATES, LIVE_WORKER_STATES, JobState
from runner.services.events import announce
from runner.services.job_models import names

DEADLINE, LATENCY = "deadline", "latency"
EVENTS = {DEADLINE: "job.deadline_at_risk", LATENCY: "job.latency_above_bound"}
_ENOUGH_LINES = 100  # to speak of a p99
_ENOUGH_OF_ITS_OWN = 20  # lines, to go by the job's own pace
_HISTORY_DAYS = 7
_ALONE_SECONDS = 3_600.0  # with no worker at all, how long before the deadline to tell


_UNFINISHED = func.cardinality(Shard.idx) - Shard.succeeded - Shard.failed


@dataclass(frozen=True, slots=True)
class Need:
    """What is left of a running job's lines for a model, and how long it may take, in seconds."""

    job_id: UUID
    project_id: UUID
    lines: int
    device_seconds: float | None  # for all its lines; None where nothing like it has run
    seconds_left: float


@dataclass(frozen=True, slots=True)
class Serving:
    """Who does the work of a model, by its name: so many workers."""

    model: str
    workers: int


@dataclass(frozen=True, slots=True)
class AlertRecord:
    """What was told of a job, and when."""

    kind: Literal["deadline", "latency"]
    message: str
    created_at: datetime


def alerts_of(session: Session, job_ids: Collection[UUID]) -> dict[UUID, list[AlertRecord]]:
    """The alerts of some jobs that have any, oldest first."""
    found: dict[UUID, list[AlertRecord]] = {}
    query = select(Alert).where(Alert.job_id.in_(job_ids)).order_by(Alert.created_at, Alert.kind)
    for row in session.scalars(query) if job_ids else ():
        kind: Literal["deadline", "latency"] = "deadline" if row.kind == DEADLINE else "latency"
        told = AlertRecord(kind, row.message, row.created_at)
        found.setdefault(row.job_id, []).append(told)
    return found


def raise_alerts(session: Session) -> int:
    """Look at every running job; returns how many alerts are new."""
    late = [
        _raise(session, need.job_id, need.project_id, DEADLINE, message)
        for model in session.scalars(_models())
        for need, message in _late(_needs(session, model.id), _serving(session, model))
    ]
    slow = [
        _raise(session, job.id, job.project_id, LATENCY, message)
        for job in session.scalars(_bounded())
        if (message := _slowness(job, _running_p99(session, job.id))) is not None
    ]
    return sum(late) + sum(slow)


def judge_end(session: Session, job: Job) -> None:
    """Hold a job that ends against its bound, by the exact figure of its account."""
    account = session.get_one(JobAccount, job.id)
    message = _slowness(job, account.total_us[-1] if account.total_us else None)
    if message is not None:
        _raise(session, job.id, job.project_id, LATENCY, message)


def _raise(session: Session, job_id: UUID, project_id: UUID, kind: str, message: str) -> bool:
    values = {"job_id": job_id, "kind": kind, "message": message}
    statement = insert(Alert).values(values).on_conflict_do_nothing().returning(Alert.kind)
    is_new = session.scalar(statement) is not None
    if is_new:
        told = {"job_id": str(job_id), "kind": kind, "message": message}
        announce(session, project_id, EVENTS[kind], told)
    return is_new


def _late(needs: Sequence[Need], serving: Serving) -> Iterator[tuple[Need, str]]:
    """The jobs of one model, in the order of leasing, that will not be done in time."""
    ahead, workers = 0.0, serving.workers
    for need in needs:
        if workers == 0:
            if need.lines and need.seconds_left < _ALONE_SECONDS:
                yield (
                    need,
                    (
                        f"No worker serves {serving.model}; {need.lines:,} lines are left, the "
                        f"deadline is in {_span(need.seconds_left)}."
                    ),
                )
            continue
        if need.device_seconds is None:
            continue
        ahead += need.device_seconds
        if ahead / workers > need.seconds_left:
            yield (
                need,
                (
                    f"{need.lines:,} lines are left. With what is ahead of them they take about "
                    f"{_span(ahead / workers)} at the measured pace, and the deadline is in "
                    f"{_span(need.seconds_left)}."
                ),
            )


def _models() -> Select[Model]:
    running = select(JobModel.model_id).join(Job, Job.id == JobModel.job_id)
    return select(Model).where(Model.id.in_(running.where(Job.state == JobState.IN_PROGRESS)))


def _serving(session: Session, model: Model) -> Serving:
    query = select(func.count()).where(
        Worker.kind == "engine",
        Worker.model_id == model.id,
        Worker.state.in_(LIVE_WORKER_STATES),
    )
    return Serving(model.name, session.scalar(query) or 0)


def _needs(session: Session, model_id: UUID) -> list[Need]:
    """What the running jobs of a model need, in the order in which they are leased."""
    left = (
        select(func.coalesce(func.sum(_UNFINISHED), 0))
        .where(
            Shard.job_id == Job.id,
            Shard.model_id == model_id,
            Shard.state.in_(COMPUTED_SHARD_STATES),
        )
        .scalar_subquery()
    )
    seconds_left = func.extract("epoch", Job.expires_at - func.now())
    query = (
        select(Job.id, Job.project_id, left, seconds_left)
        .where(Job.state == JobState.IN_PROGRESS, names(ModelId(model_id)), Job.paused_at.is_(None))
        .order_by(Job.priority.desc(), Job.expires_at, Job.id)
    )
    rows = session.execute(query).all()
    of_model = UsageDay.model_id == model_id
    own = {
        row.id: _pace(session, of_model & (UsageDay.job_id == row.id), _ENOUGH_OF_ITS_OWN)
        for row in rows
    }
    usual = _pace(session, of_model, 1) if None in own.values() else None
    return [_need(row, usual if own[row.id] is None else own[row.id]) for row in rows]


def _need(row: Row[UUID, UUID, int, float], pace: float | None) -> Need:
    job_id, project_id, lines, seconds_left = row
    seconds = None if pace is None else pace * int(lines)
    return Need(job_id, project_id, int(lines), seconds, float(seconds_left))


def _pace(session: Session, of: ColumnElement[bool], least: int) -> float | None:
    """Device seconds per line of the last days; None when there were too few lines."""
    since = func.current_date() - _HISTORY_DAYS
    computed = UsageDay.lines - UsageDay.reused_lines
    query = select(func.sum(UsageDay.device_us), func.sum(computed))
    device_us, lines = session.execute(query.where(of, UsageDay.day >= since)).one()
    return None if lines is None or lines < least else float(device_us) / float(lines) / 1e6


def _bounded() -> Select[Job]:
    told = select(Alert.kind).where(Alert.job_id == Job.id, Alert.kind == LATENCY)
    return select(Job).where(
        Job.state == JobState.IN_PROGRESS, Job.p99_bound_ms.is_not(None), ~told.exists()
    )


def _running_p99(session: Session, job_id: UUID) -> int | None:
    """Of the lines so far, as they are rolled up; None while they are few."""
    query = (
        select(LatencyDay.bucket, func.sum(LatencyDay.lines))
        .where(LatencyDay.job_id == job_id, LatencyDay.measure == Measure.TOTAL)
        .group_by(LatencyDay.bucket)
    )
    histogram = {bucket: int(lines) for bucket, lines in session.execute(query)}
    enough = sum(histogram.values()) >= _ENOUGH_LINES
    return percentiles_of(histogram).p99 if enough else None


def _slowness(job: Job, p99_us: int | None) -> str | None:
    if job.p99_bound_ms is None or p99_us is None or p99_us <= job.p99_bound_ms * 1000:
        return None
    return (
        f"The 99th percentile of its lines' time is {p99_us / 1000:,.0f} ms; "
        f"the bound is {job.p99_bound_ms:,} ms."
    )


def _span(seconds: float) -> str:
    if seconds < 0:
        return "the past"
    return str(timedelta(seconds=round(seconds)))
