"""The tables that grow with every line, partitioned by job: old work leaves by dropping a
partition."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, SmallInteger

from runner.db.models.base import Base, one_of
from runner.domain.states import ShardState

PARTITIONED = {"postgresql_partition_by": "RANGE (job_id)"}


class WorkItem(Base):
    """One line of a job; written once at ingest, never updated."""

    __tablename__ = "work_items"
    __table_args__ = (
        CheckConstraint("idx >= 0 AND byte_offset >= 0 AND byte_length > 0", name="place"),
        PARTITIONED,
    )

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    custom_id: Mapped[str]
    byte_offset: Mapped[int] = mapped_column(BigInteger)
    byte_length: Mapped[int]


class Copy(Base):
    """A line that takes the answer of an equal one, of its own job or of an earlier one.

    Written once with the job's items, and true for as long as the line's shard follows.
    """

    __tablename__ = "copies"
    __table_args__ = (PARTITIONED,)

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    source_job_id: Mapped[UUID]
    source_idx: Mapped[int]


class AnswerKey(Base):
    """A line whose answer later jobs of its project may take, found by its key."""

    __tablename__ = "answer_keys"
    __table_args__ = (Index("ix_answer_keys_key", "key", "project_id"), PARTITIONED)

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[UUID]
    key: Mapped[bytes]


class Shard(Base):
    """A few dozen lines of one job, leased together; the only thing that changes hands.

    One that follows is never leased: its lines take the answers of others (``Copy``).

    ``epoch`` grows with each lease and never falls: it is the fencing token. ``attempt`` counts the
    leases that were not given back unharmed.
    """

    __tablename__ = "shards"
    __table_args__ = (
        CheckConstraint(one_of("state", ShardState), name="state"),
        CheckConstraint(
            "(state = 'leased') = (worker_id IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name="lease",
        ),
        CheckConstraint(
            "reserved_nano >= 0 AND (state = 'leased' OR reserved_nano = 0)", name="reserved"
        ),
        CheckConstraint("cardinality(idx) > 0", name="not_empty"),
        CheckConstraint(
            "succeeded >= 0 AND failed >= 0 AND succeeded + failed <= cardinality(idx)",
            name="counts",
        ),
        CheckConstraint(
            "state <> 'done' OR succeeded + failed = cardinality(idx)", name="done_is_complete"
        ),
        Index(
            "ix_shards_open",
            "job_id",
            "model_id",
            "suspect",
            "shard_no",
            postgresql_where=text("state = 'open'"),
        ),
        Index(
            "ix_shards_following",
            "job_id",
            "shard_no",
            postgresql_where=text("state = 'following'"),
        ),
        Index("ix_shards_leased", "worker_id", postgresql_where=text("state = 'leased'")),
        PARTITIONED,
    )

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    shard_no: Mapped[int] = mapped_column(primary_key=True)
    model_id: Mapped[UUID]
    price_id: Mapped[UUID]
    idx: Mapped[list[int]]
    state: Mapped[str]
    epoch: Mapped[int] = mapped_column(server_default="0")
    attempt: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    suspect: Mapped[bool] = mapped_column(server_default=text("false"))
    # Workers lost while a suspect's last line had the engine for itself.
    alone_losses: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    not_before: Mapped[datetime | None]
    worker_id: Mapped[UUID | None]
    lease_expires_at: Mapped[datetime | None]
    succeeded: Mapped[int] = mapped_column(server_default="0")
    failed: Mapped[int] = mapped_column(server_default="0")
    prompt_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    cached_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    output_tokens: Mapped[int] = mapped_column(BigInteger, server_default="0")
    billed_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")
    run_cost_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")
    # The most that its unfinished lines can be billed while a budget has to bear them.
    reserved_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")


class Result(Base):
    """The terminal answer of an item: its complete line of the output or error file."""

    __tablename__ = "results"
    __table_args__ = (
        CheckConstraint("octet_length(line) > 2", name="line_not_empty"),
        Index("ix_results_failed", "job_id", "idx", postgresql_where=text("failed")),
        PARTITIONED,
    )

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    failed: Mapped[bool]
    epoch: Mapped[int]  # of the lease that was live at the commit; 0 where nothing was leased
    line: Mapped[bytes | None]  # None once its file was deleted or has expired


class Usage(Base):
    """The ledger: what one accepted item used and cost. No foreign key: it outlives everything."""

    __tablename__ = "usage"
    __table_args__ = (
        CheckConstraint(
            "cached_tokens BETWEEN 0 AND prompt_tokens AND output_tokens >= 0 AND device_us >= 0"
            " AND billed_nano >= 0 AND run_cost_nano >= 0",
            name="quantities",
        ),
        PARTITIONED,
    )

    job_id: Mapped[UUID] = mapped_column(primary_key=True)
    idx: Mapped[int] = mapped_column(primary_key=True)
    project_id: Mapped[UUID]
    api_key_id: Mapped[UUID | None]
    model_id: Mapped[UUID]
    price_id: Mapped[UUID]
    worker_id: Mapped[UUID]
    attempt: Mapped[int] = mapped_column(SmallInteger)
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    output_tokens: Mapped[int]
    queue_us: Mapped[int] = mapped_column(BigInteger)
    prefill_us: Mapped[int] = mapped_column(BigInteger)
    first_token_us: Mapped[int] = mapped_column(BigInteger)
    decode_us: Mapped[int] = mapped_column(BigInteger)
    total_us: Mapped[int] = mapped_column(BigInteger)
    device_us: Mapped[int] = mapped_column(BigInteger)
    preemptions: Mapped[int]
    recomputed_tokens: Mapped[int]
    truncated_tokens: Mapped[int] = mapped_column(server_default="0")  # cut off the prompt
    energy_uj: Mapped[int | None] = mapped_column(BigInteger)  # null where nothing measures it
    billed_nano: Mapped[int] = mapped_column(BigInteger)
    run_cost_nano: Mapped[int] = mapped_column(BigInteger)
    # Another's answer was taken: nothing was computed, no token counts.
    reused: Mapped[bool] = mapped_column(server_default=text("false"))
    saved_nano: Mapped[int] = mapped_column(BigInteger, server_default="0")  # against computing it
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
