"""The ledger of one job, line by line."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import Usage, WorkItem


@dataclass(frozen=True, slots=True)
class LineUsage:
    """What one accepted line used. Times are in microseconds, money in nano-units."""

    idx: int
    custom_id: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_us: int
    first_token_us: int
    total_us: int
    device_us: int
    preemptions: int
    billed_nano: int
    run_cost_nano: int


def line_usage(
    session: Session, job_id: UUID, after: int = -1, limit: int = 100
) -> list[LineUsage]:
    """A page of a job's ledger rows in line order, after a line number."""
    columns = (
        Usage.idx,
        WorkItem.custom_id,
        Usage.prompt_tokens,
        Usage.cached_tokens,
        Usage.output_tokens,
        Usage.queue_us,
        Usage.first_token_us,
        Usage.total_us,
        Usage.device_us,
        Usage.preemptions,
        Usage.billed_nano,
        Usage.run_cost_nano,
    )
    query = (
        select(*columns)
        .join(WorkItem, (WorkItem.job_id == Usage.job_id) & (WorkItem.idx == Usage.idx))
        .where(Usage.job_id == job_id, WorkItem.job_id == job_id, Usage.idx > after)
        .order_by(Usage.idx)
        .limit(limit)
    )
    return [LineUsage(**row) for row in session.execute(query).mappings()]
