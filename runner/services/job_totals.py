"""What a job's lines came to so far: sums over its shards, which each result is counted in."""

from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from runner.db.models import Shard


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a job's accepted lines: tokens, and money in nano-units.

    Of the ``succeeded``, ``reused`` took the answers of others.
    """

    succeeded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    billed_nano: int = 0
    run_cost_nano: int = 0
    reused: int = 0


def running_totals(session: Session, job_ids: Collection[UUID]) -> dict[UUID, Totals]:
    """The sums of jobs that have not ended."""
    if not job_ids:
        return {}
    query = select(Shard.job_id, *_sums()).where(Shard.job_id.in_(job_ids)).group_by(Shard.job_id)
    return {row[0]: _totals(*row[1:]) for row in session.execute(query)}


def totals_by_model(session: Session, job_ids: Collection[UUID]) -> dict[tuple[UUID, UUID], Totals]:
    """The sums of each model of some jobs, by job and model."""
    if not job_ids:
        return {}
    keys = (Shard.job_id, Shard.model_id)
    query = select(*keys, *_sums()).where(Shard.job_id.in_(job_ids)).group_by(*keys)
    return {(row[0], row[1]): _totals(*row[2:]) for row in session.execute(query)}


def _sums() -> list[ColumnElement[int]]:
    columns = (
        Shard.succeeded,
        Shard.failed,
        Shard.prompt_tokens,
        Shard.cached_tokens,
        Shard.output_tokens,
        Shard.billed_nano,
        Shard.run_cost_nano,
    )
    # A shard that was never leased, and has results all the same, has followed.
    reused = func.sum(Shard.succeeded).filter(Shard.epoch == 0)
    return [*(func.coalesce(func.sum(column), 0) for column in columns), func.coalesce(reused, 0)]


def _totals(*sums: int) -> Totals:
    return Totals(*map(int, sums))
