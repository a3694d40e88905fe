"""What is kept of the ledger for longer than its rows: sums by day, latencies, frozen accounts."""

from datetime import date, datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Date, SmallInteger

from runner.db.models.base import Base

ALERT_KINDS = ("deadline", "latency")


class UsageDay(Base):
    """The roll-up: sums over one job's ledger rows of one UTC day, one model and one price list.

    No foreign keys: like the ledger it outlives everything.
    """

    __tablename__ = "usage_days"
    __table_args__ = (Index("ix_usage_days_project_id_day", "project_id", "day"),)

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    model_id: Mapped[UUID] = mapped_column(primary_key=True)
    price_id: Mapped[UUID] = mapped_column(primary_key=True)
    project_id: Mapped[UUID]
    api_key_id: Mapped[UUID | None]
    lines: Mapped[int]
    attempts: Mapped[int]
    prompt_tokens: Mapped[int] = mapped_column(BigInteger)
    cached_tokens: Mapped[int] = mapped_column(BigInteger)
    output_tokens: Mapped[int] = mapped_column(BigInteger)
    device_us: Mapped[int] = mapped_column(BigInteger)
    preemptions: Mapped[int] = mapped_column(BigInteger)
    recomputed_tokens: Mapped[int] = mapped_column(BigInteger)
    truncated_lines: Mapped[int]
    truncated_tokens: Mapped[int] = mapped_column(BigInteger)
    energy_uj: Mapped[int] = mapped_column(BigInteger)
    metered_lines: Mapped[int]  # whose energy was measured
    reused_lines: Mapped[int] = mapped_column(server_default="0")
    saved_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")
    billed_nano: Mapped[int] = mapped_column(BigInteger)
    run_cost_nano: Mapped[int] = mapped_column(BigInteger)
    rolled_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LatencyDay(Base):
    """How many lines of a job's day fell into one bucket of one latency (``domain.latency``)."""

    __tablename__ = "latency_days"

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    model_id: Mapped[UUID] = mapped_column(primary_key=True)
    measure: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    bucket: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    lines: Mapped[int]


class JobAccount(Base):
    """The account of an ended job, frozen at its closing; percentiles are p50, p90 and p99."""

    __tablename__ = "job_accounts"

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    lines: Mapped[int]
    attempts: Mapped[int]
    device_us: Mapped[int] = mapped_column(BigInteger)
    preemptions: Mapped[int] = mapped_column(BigInteger)
    recomputed_tokens: Mapped[int] = mapped_column(BigInteger)
    truncated_lines: Mapped[int]
    truncated_tokens: Mapped[int] = mapped_column(BigInteger)
    energy_uj: Mapped[int] = mapped_column(BigInteger)
    metered_lines: Mapped[int]
    reused_lines: Mapped[int] = mapped_column(server_default="0")
    saved_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")
    queue_us: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    first_token_us: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    per_token_us: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    total_us: Mapped[list[int] | None] = mapped_column(ARRAY(BigInteger))
    lanes: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
    frozen_at: Mapped[datetime] = mapped_column(server_default=func.now())


class JobWaste(Base):
    """What one worker spent on a job for nothing: attempts that were aborted, came too late, or
    failed. A worker writes its own row only, as the sum since it started."""

    __tablename__ = "job_waste"
    __table_args__ = (CheckConstraint("attempts >= 0 AND device_us >= 0", name="not_negative"),)

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    worker_id: Mapped[UUID] = mapped_column(primary_key=True)
    attempts: Mapped[int]
    device_us: Mapped[int] = mapped_column(BigInteger)


class WorkerDay(Base):
    """Where one worker's wall time of one UTC day went, in microseconds."""

    __tablename__ = "worker_days"

    worker_id: Mapped[UUID] = mapped_column(
        ForeignKey("workers.id", ondelete="CASCADE"), primary_key=True
    )
    day: Mapped[date] = mapped_column(Date, primary_key=True)
    shared_us: Mapped[int] = mapped_column(BigInteger)
    idle_us: Mapped[int] = mapped_column(BigInteger)
    load_us: Mapped[int] = mapped_column(BigInteger)
    wasted_us: Mapped[int] = mapped_column(BigInteger)


class Alert(Base):
    """A promise of a job that will not be kept; told once for each kind."""

    __tablename__ = "alerts"
    __table_args__ = (
        CheckConstraint(f"kind IN ({', '.join(map(repr, ALERT_KINDS))})", name="kind"),
    )

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    kind: Mapped[str] = mapped_column(primary_key=True)
    message: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
