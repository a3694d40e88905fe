"""The ledger of one job, line by line."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import Usage, WorkItem
from runner.services.gone_lines import require_lines


@dataclass(frozen=True, slots=True)
class LineUsage:
    """What one accepted line used. Times are in microseconds, money in nano-units.

    One that was ``reused`` took the answer of another: it used nothing, and cost so much less.
    """

    idx: int
    custom_id: str
    attempt: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_us: int
    prefill_us: int
    first_token_us: int
    decode_us: int
    total_us: int
    device_us: int
    preemptions: int
    recomputed_tokens: int
    energy_uj: int | None
    billed_nano: int
    run_cost_nano: int
    reused: bool
    saved_nano: int

    @property
    def computed_tokens(self) -> int:
        """Prompt tokens that were not found in the cache."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def per_token_us(self) -> int | None:
        """Time between two output tokens; None when there were not two."""
        return self.decode_us // (self.output_tokens - 1) if self.output_tokens > 1 else None


def line_usage(
    session: Session, job_id: UUID, after: int = -1, limit: int = 100
) -> list[LineUsage]:
    """A page of a job's ledger rows in line order, after a line number.

    Raises:
        Gone: retention has removed them.
    """
    require_lines(session, job_id)
    columns = (
        Usage.idx,
        WorkItem.custom_id,
        Usage.attempt,
        Usage.prompt_tokens,
        Usage.cached_tokens,
        Usage.output_tokens,
        Usage.queue_us,
        Usage.prefill_us,
        Usage.first_token_us,
        Usage.decode_us,
        Usage.total_us,
        Usage.device_us,
        Usage.preemptions,
        Usage.recomputed_tokens,
        Usage.energy_uj,
        Usage.billed_nano,
        Usage.run_cost_nano,
        Usage.reused,
        Usage.saved_nano,
    )
    query = (
        select(*columns)
        .join(WorkItem, (WorkItem.job_id == Usage.job_id) & (WorkItem.idx == Usage.idx))
        .where(Usage.job_id == job_id, WorkItem.job_id == job_id, Usage.idx > after)
        .order_by(Usage.idx)
        .limit(limit)
    )
    return [LineUsage(**row) for row in session.execute(query).mappings()]
