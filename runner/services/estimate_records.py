"""The estimates of jobs as they are kept and shown."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import JobEstimate
from runner.domain.estimate import Estimate
from runner.domain.estimate_sums import together


@dataclass(frozen=True, slots=True)
class Actual:
    """What a job took. Money is in nano-units; ``run_us`` is from its start to its last line.

    Beside ``lines``, ``reused_lines`` took the answers of others.
    """

    lines: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billed_nano: int
    run_cost_nano: int
    device_us: int
    run_us: int | None
    reused_lines: int = 0


@dataclass(frozen=True, slots=True)
class EstimateRecord:
    """What a job was expected to take when it began, what it is now, and what it took.

    ``given`` is exact once ``is_counted``; only then are ``too_long`` and ``refused`` lines known.
    """

    given: Estimate
    newest: Estimate | None
    actual: Actual | None
    is_counted: bool
    too_long: int
    refused: int


def estimate_records(session: Session, job_ids: Iterable[UUID]) -> dict[UUID, EstimateRecord]:
    """The estimates of jobs by their ids; a job that nobody has read yet has none."""
    found: dict[UUID, list[JobEstimate]] = {}
    query = select(JobEstimate).where(JobEstimate.job_id.in_(list(job_ids)))
    for row in session.scalars(query.order_by(JobEstimate.model_id)):
        found.setdefault(row.job_id, []).append(row)
    return {job_id: _record_of(rows) for job_id, rows in found.items()}


def kept(value: Estimate | Actual) -> dict[str, Any]:
    """An estimate, or the truth, as the database has it."""
    told: dict[str, Any] = msgspec.to_builtins(value)
    return told


def read_estimate(value: dict[str, Any]) -> Estimate:
    """The estimate that the database has."""
    return msgspec.convert(value, Estimate)


def _record_of(rows: Sequence[JobEstimate]) -> EstimateRecord:
    """The estimates of a job's models as one."""
    given = [read_estimate(row.given) for row in rows]
    newest = [None if row.newest is None else read_estimate(row.newest) for row in rows]
    latest = [new or first for new, first in zip(newest, given, strict=True)]
    actual = [row.actual for row in rows if row.actual is not None]
    return EstimateRecord(
        given=together(given),
        newest=together(latest) if any(newest) else None,
        actual=_sum([msgspec.convert(each, Actual) for each in actual]) if actual else None,
        is_counted=all(row.counted_at is not None for row in rows),
        too_long=sum(row.too_long for row in rows),
        refused=sum(row.refused for row in rows),
    )


def _sum(parts: Sequence[Actual]) -> Actual:
    """What the models of a job took; its run is the same for all of them."""
    names = [name for name in Actual.__slots__ if name != "run_us"]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Actual(run_us=parts[0].run_us, **sums)
