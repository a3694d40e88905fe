"""The estimates of jobs as they are kept and shown."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import msgspec
from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import JobEstimate
from runner.domain.estimate import Estimate


@dataclass(frozen=True, slots=True)
class Actual:
    """What a job took. Money is in nano-units; ``run_us`` is from its start to its last line."""

    lines: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    billed_nano: int
    run_cost_nano: int
    device_us: int
    run_us: int | None


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
    rows = session.scalars(select(JobEstimate).where(JobEstimate.job_id.in_(list(job_ids))))
    return {row.job_id: _record_of(row) for row in rows}


def kept(value: Estimate | Actual) -> dict[str, Any]:
    """An estimate, or the truth, as the database has it."""
    told: dict[str, Any] = msgspec.to_builtins(value)
    return told


def read_estimate(value: dict[str, Any]) -> Estimate:
    """The estimate that the database has."""
    return msgspec.convert(value, Estimate)


def _record_of(row: JobEstimate) -> EstimateRecord:
    return EstimateRecord(
        given=read_estimate(row.given),
        newest=None if row.newest is None else read_estimate(row.newest),
        actual=None if row.actual is None else msgspec.convert(row.actual, Actual),
        is_counted=row.counted_at is not None,
        too_long=row.too_long,
        refused=row.refused,
    )
