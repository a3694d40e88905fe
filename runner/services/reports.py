"""The truth after a run: tokens, money and latency of one job."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from runner.db.models import Usage, Worker
from runner.domain.ids import ProjectId
from runner.domain.lanes import Lane
from runner.services.job_records import JobRecord
from runner.services.jobs import get_job


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds; None when no line has finished."""

    p50: int | None
    p90: int | None
    p99: int | None


@dataclass(frozen=True, slots=True)
class LaneUse:
    """How many of a job's billed lines ran in a lane."""

    lane: Lane
    lines: int


@dataclass(frozen=True, slots=True)
class JobReport:
    """One job's figures. Money is in integer nano-units, times are in microseconds.

    ``truncated_lines`` were answered from a shortened prompt, which lost ``truncated_tokens``.
    """

    job: JobRecord
    billed_lines: int
    preemptions: int
    recomputed_tokens: int
    truncated_lines: int
    truncated_tokens: int
    device_us: int
    queue: Percentiles
    first_token: Percentiles
    total: Percentiles
    lanes: tuple[LaneUse, ...]


_QUANTILES = (0.5, 0.9, 0.99)


def job_report(session: Session, project_id: ProjectId, job_id: UUID) -> JobReport:
    """The report of a job of the project, also while it runs."""
    job = get_job(session, project_id, job_id)
    sums = session.execute(
        select(
            func.count(),
            func.coalesce(func.sum(Usage.preemptions), 0),
            func.coalesce(func.sum(Usage.recomputed_tokens), 0),
            func.count().filter(Usage.truncated_tokens > 0),
            func.coalesce(func.sum(Usage.truncated_tokens), 0),
            func.coalesce(func.sum(Usage.device_us), 0),
            *(
                func.percentile_disc(list(_QUANTILES)).within_group(column)
                # An embedding has no first token.
                for column in (Usage.queue_us, func.nullif(Usage.first_token_us, 0), Usage.total_us)
            ),
        ).where(Usage.job_id == job_id)
    ).one()
    return JobReport(
        job=job,
        billed_lines=sums[0],
        preemptions=int(sums[1]),
        recomputed_tokens=int(sums[2]),
        truncated_lines=sums[3],
        truncated_tokens=int(sums[4]),
        device_us=int(sums[5]),
        queue=_percentiles(sums[6]),
        first_token=_percentiles(sums[7]),
        total=_percentiles(sums[8]),
        lanes=lane_uses(session, job_id),
    )


def lane_uses(session: Session, job_id: UUID) -> tuple[LaneUse, ...]:
    """The lanes of the workers that answered a job's billed lines, the busiest first."""
    lines = func.count().label("lines")
    rows = session.execute(
        select(Worker.lane, Worker.lane_reason, lines)
        .join(Usage, Usage.worker_id == Worker.id)
        .where(Usage.job_id == job_id)
        .group_by(Worker.lane, Worker.lane_reason)
        .order_by(lines.desc(), Worker.lane, Worker.lane_reason)
    )
    return tuple(LaneUse(Lane(name, reason), count) for name, reason, count in rows)


def _percentiles(values: list[int] | None) -> Percentiles:
    if values is None:
        return Percentiles(None, None, None)
    return Percentiles(*values)
