"""What jobs were expected to take, and the counts of their shards that this rests on."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from runner.db.models.base import Base
from runner.db.models.work import PARTITIONED


class ShardCount(Base):
    """The count of one shard as it was made at ingest, leased like it and written once.

    Halves of a shard that was split have none: its own tells of all its lines.
    """

    __tablename__ = "shard_counts"
    __table_args__ = (
        CheckConstraint(
            "counted_at IS NULL OR (cached_tokens BETWEEN 0 AND input_tokens"
            " AND lines = bounded_lines + unbounded_lines AND refused >= 0 AND too_long >= 0)",
            name="sums",
        ),
        Index(
            "ix_shard_counts_open",
            "job_id",
            "shard_no",
            postgresql_where=text("counted_at IS NULL"),
        ),
        PARTITIONED,
    )

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    shard_no: Mapped[int] = mapped_column(primary_key=True)
    epoch: Mapped[int] = mapped_column(server_default="0")
    lease_expires_at: Mapped[datetime | None]
    counted_at: Mapped[datetime | None]
    lines: Mapped[int] = mapped_column(server_default="0")
    input_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    longest: Mapped[int] = mapped_column(server_default="0")
    refused: Mapped[int] = mapped_column(server_default="0")
    too_long: Mapped[int] = mapped_column(server_default="0")
    too_long_idx: Mapped[list[int]] = mapped_column(server_default="{}")  # the first of them
    bounded_lines: Mapped[int] = mapped_column(server_default="0")
    bounded_output: Mapped[int] = mapped_column(BigInteger, server_default="0")
    unbounded_lines: Mapped[int] = mapped_column(server_default="0")
    unbounded_output: Mapped[int] = mapped_column(BigInteger, server_default="0")


class JobEstimate(Base):
    """What the lines of one job that name one model were expected to take, and what they took.

    ``given`` is the estimate before the run and is replaced once, when all prompts are counted;
    ``newest`` follows the run; ``actual`` is the truth at the end, ``lengths`` what later
    estimates learn from it.
    """

    __tablename__ = "job_estimates"
    __table_args__ = (
        CheckConstraint("prompt_bytes >= 0 AND refused >= 0 AND too_long >= 0", name="counts"),
        Index("ix_job_estimates_open", "job_id", postgresql_where=text("counted_at IS NULL")),
    )

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    model_id: Mapped[UUID] = mapped_column(primary_key=True)
    price_id: Mapped[UUID]
    prompt_bytes: Mapped[int] = mapped_column(BigInteger)  # as written in the file
    counted_at: Mapped[datetime | None]
    refused: Mapped[int] = mapped_column(server_default="0")
    too_long: Mapped[int] = mapped_column(server_default="0")
    given: Mapped[dict[str, Any]]
    newest: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    actual: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    lengths: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
