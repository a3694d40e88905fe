"""All tables. Rules that must always hold are constraints here, not habits of the code.

``work_items``, ``shards``, ``results`` and ``usage`` are range-partitioned by ``job_id``, whose
first bits are time: old work leaves by dropping a partition.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    MetaData,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import BigInteger, Integer, SmallInteger, Text

from runner.domain.ids import new_uuid
from runner.domain.states import JobState, ShardState, WorkerState

PARTITIONED = {"postgresql_partition_by": "RANGE (job_id)"}


def _one_of(column: str, values: type[JobState] | type[ShardState] | type[WorkerState]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


class Base(DeclarativeBase):
    """Root of the tables; names of constraints follow one pattern."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {
        datetime: TIMESTAMP(timezone=True),
        str: Text,
        bytes: BYTEA,
        dict[str, Any]: JSONB,
        dict[str, str]: JSONB,
        list[str]: ARRAY(Text),
        list[int]: ARRAY(Integer),
    }


class Project(Base):
    """A tenant: everything else belongs to one."""

    __tablename__ = "projects"
    __table_args__ = (
        UniqueConstraint("name"),
        CheckConstraint("char_length(name) BETWEEN 1 AND 100", name="name_length"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Base):
    """A bearer key; only its SHA-256 is kept."""

    __tablename__ = "api_keys"
    __table_args__ = (
        UniqueConstraint("secret_sha256"),
        CheckConstraint("octet_length(secret_sha256) = 32", name="hash_length"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), index=True)
    name: Mapped[str]
    hint: Mapped[str]  # the first letters, to tell keys apart
    secret_sha256: Mapped[bytes]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class Model(Base):
    """A model that lines may name. ``path`` is a folder of weights, or ``stub:``."""

    __tablename__ = "models"
    __table_args__ = (UniqueConstraint("name"),)

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    name: Mapped[str]
    path: Mapped[str]
    manifest: Mapped[dict[str, str]]  # file name -> SHA-256
    context_length: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    retired_at: Mapped[datetime | None]


class Price(Base):
    """One version of a model's price list, valid from a moment until the next version."""

    __tablename__ = "prices"
    __table_args__ = (
        UniqueConstraint("model_id", "valid_from"),
        CheckConstraint(
            "input_nano_per_million >= 0 AND cached_nano_per_million >= 0"
            " AND output_nano_per_million >= 0 AND device_nano_per_hour >= 0",
            name="not_negative",
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    valid_from: Mapped[datetime]
    currency: Mapped[str] = mapped_column(server_default="USD")
    input_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    cached_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    output_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    device_nano_per_hour: Mapped[int] = mapped_column(BigInteger)


class File(Base):
    """A file: an uploaded input in chunks, or the view of a job's output or errors."""

    __tablename__ = "files"
    __table_args__ = (
        CheckConstraint("purpose IN ('batch', 'batch_output')", name="purpose"),
        CheckConstraint("view IS NULL OR view IN ('output', 'error')", name="view"),
        CheckConstraint("(purpose = 'batch_output') = (job_id IS NOT NULL)", name="output_of"),
        CheckConstraint("(view IS NULL) = (job_id IS NULL)", name="view_of"),
        CheckConstraint("bytes >= 0", name="bytes_not_negative"),
        Index("ix_files_project_id_id", "project_id", "id"),
        Index("uq_files_job_id_view", "job_id", "view", unique=True),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    purpose: Mapped[str]
    filename: Mapped[str]
    size: Mapped[int] = mapped_column("bytes", BigInteger)
    sha256: Mapped[bytes | None]
    job_id: Mapped[UUID | None]
    view: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]


class FileChunk(Base):
    """One mebibyte of an uploaded file (the last chunk may be shorter)."""

    __tablename__ = "file_chunks"

    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    chunk_no: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class FileIndex(Base):
    """Where each block of lines of a finished output or error file begins, in bytes."""

    __tablename__ = "file_index"

    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    block_no: Mapped[int] = mapped_column(primary_key=True)  # idx // INDEX_LINES
    byte_offset: Mapped[int] = mapped_column(BigInteger)


_JOB_TIMES = " AND ".join(
    f"(state <> '{state}' OR {state}_at IS NOT NULL)"
    for state in JobState
    if state is not JobState.VALIDATING
)


class Job(Base):
    """One submitted file and its life."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(_one_of("state", JobState), name="state"),
        CheckConstraint(_JOB_TIMES, name="times"),
        CheckConstraint(
            "outcome IS NULL OR outcome IN ('completed', 'expired', 'cancelled')", name="outcome"
        ),
        CheckConstraint("on_invalid IN ('fail', 'skip')", name="on_invalid"),
        CheckConstraint("priority BETWEEN -100 AND 100", name="priority"),
        CheckConstraint("total_items >= 0 AND invalid_items >= 0", name="counts"),
        Index("ix_jobs_project_id_id", "project_id", "id"),
        Index(
            "ix_jobs_live",
            "state",
            postgresql_where=text(
                "state IN ('validating','in_progress','finalizing','cancelling')"
            ),
        ),
        Index(
            "uq_jobs_idempotency",
            "api_key_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    api_key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"))
    input_file_id: Mapped[UUID] = mapped_column(ForeignKey("files.id"), index=True)
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    job_metadata: Mapped[dict[str, str] | None] = mapped_column(
        "metadata", JSONB(none_as_null=True)
    )
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    on_invalid: Mapped[str] = mapped_column(server_default="fail")
    output_expires_seconds: Mapped[int | None]
    idempotency_key: Mapped[str | None]
    request_sha256: Mapped[bytes]

    state: Mapped[str]
    outcome: Mapped[str | None]  # what finalising or cancelling will end in
    model_id: Mapped[UUID | None] = mapped_column(ForeignKey("models.id"))
    total_items: Mapped[int | None]
    invalid_items: Mapped[int] = mapped_column(server_default="0")
    error_count: Mapped[int] = mapped_column(server_default="0")
    output_file_id: Mapped[UUID] = mapped_column(default=new_uuid)
    error_file_id: Mapped[UUID] = mapped_column(default=new_uuid)
    output_lines: Mapped[int | None]  # known once ended
    error_lines: Mapped[int | None]
    prompt_tokens: Mapped[int | None] = mapped_column(BigInteger)
    cached_tokens: Mapped[int | None] = mapped_column(BigInteger)
    output_tokens: Mapped[int | None] = mapped_column(BigInteger)
    billed_nano: Mapped[int | None] = mapped_column(BigInteger)
    run_cost_nano: Mapped[int | None] = mapped_column(BigInteger)

    ingest_epoch: Mapped[int] = mapped_column(server_default="0")
    ingest_expires_at: Mapped[datetime | None]

    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    in_progress_at: Mapped[datetime | None]
    finalizing_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    expired_at: Mapped[datetime | None]
    cancelling_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]


class JobError(Base):
    """A fault found while validating a job's file (the first 1,000 are kept)."""

    __tablename__ = "job_errors"

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    error_no: Mapped[int] = mapped_column(primary_key=True)
    code: Mapped[str]
    message: Mapped[str]
    line: Mapped[int | None]
    param: Mapped[str | None]


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


class Shard(Base):
    """A few dozen lines of one job, leased together; the only thing that changes hands.

    ``epoch`` grows with each lease and never falls: it is the fencing token. ``attempt`` counts the
    leases that were not given back unharmed.
    """

    __tablename__ = "shards"
    __table_args__ = (
        CheckConstraint(_one_of("state", ShardState), name="state"),
        CheckConstraint(
            "(state = 'leased') = (worker_id IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name="lease",
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
            "suspect",
            "shard_no",
            postgresql_where=text("state = 'open'"),
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
    epoch: Mapped[int]  # of the lease that was live at the commit; 0 for a line refused at ingest
    line: Mapped[bytes]


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
    billed_nano: Mapped[int] = mapped_column(BigInteger)
    run_cost_nano: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Worker(Base):
    """One process start of a worker. Never reused, so a late heartbeat cannot revive another."""

    __tablename__ = "workers"
    __table_args__ = (
        CheckConstraint(_one_of("state", WorkerState), name="state"),
        CheckConstraint("kind IN ('cpu', 'engine')", name="kind"),
        CheckConstraint("(state IN ('ended', 'dead')) = (ended_at IS NOT NULL)", name="ended"),
        Index(
            "ix_workers_live",
            "last_seen_at",
            postgresql_where=text("state IN ('starting','ready','draining')"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    kind: Mapped[str]
    host: Mapped[str]
    pid: Mapped[int]
    model_id: Mapped[UUID | None] = mapped_column(ForeignKey("models.id"))
    description: Mapped[str] = mapped_column(server_default="")
    state: Mapped[str]
    rows: Mapped[int] = mapped_column(server_default="0")  # sequences it runs at once
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    busy_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    idle_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    load_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    wasted_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    stale_results: Mapped[int] = mapped_column(server_default="0")
    stats: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))


class OutboxEvent(Base):
    """Something to tell the outside, written in the transaction that made it true."""

    __tablename__ = "outbox"
    __table_args__ = (
        Index("ix_outbox_unsent", "not_before", postgresql_where=text("sent_at IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    kind: Mapped[str]
    payload: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    not_before: Mapped[datetime] = mapped_column(server_default=func.now())
    attempts: Mapped[int] = mapped_column(server_default="0")
    sent_at: Mapped[datetime | None]


class AuditEntry(Base):
    """Who did what to which thing; a trigger refuses every update and delete."""

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    project_id: Mapped[UUID | None]
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    detail: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))
