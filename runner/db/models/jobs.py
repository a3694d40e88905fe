"""Jobs, and the faults of their files."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, SmallInteger

from runner.db.models.base import Base, one_of
from runner.domain.ids import new_uuid
from runner.domain.reuse import Dedupe
from runner.domain.states import JobState

_JOB_TIMES = " AND ".join(
    f"(state <> '{state}' OR {state}_at IS NOT NULL)"
    for state in JobState
    if state is not JobState.VALIDATING
)


class Job(Base):
    """One submitted file and its life."""

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(one_of("state", JobState), name="state"),
        CheckConstraint(_JOB_TIMES, name="times"),
        CheckConstraint(
            "outcome IS NULL OR outcome IN ('completed', 'expired', 'cancelled')", name="outcome"
        ),
        CheckConstraint("on_invalid IN ('fail', 'skip')", name="on_invalid"),
        CheckConstraint(one_of("dedupe", Dedupe), name="dedupe"),
        CheckConstraint("priority BETWEEN -100 AND 100", name="priority"),
        CheckConstraint(
            "(paused_at IS NULL) = (pause_reason IS NULL) AND pause_reason IN ('user', 'budget')",
            name="pause",
        ),
        CheckConstraint("max_cost_nano >= 0 AND on_budget IN ('refuse', 'pause')", name="budget"),
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
            "project_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    api_key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"))
    # Of a retry: the job whose unanswered lines it runs, under the same line numbers.
    parent_id: Mapped[UUID | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    input_file_id: Mapped[UUID] = mapped_column(ForeignKey("files.id"), index=True)
    schedule_id: Mapped[UUID | None] = mapped_column(ForeignKey("schedules.id"), index=True)
    endpoint: Mapped[str]
    completion_window: Mapped[str]
    job_metadata: Mapped[dict[str, str] | None] = mapped_column(
        "metadata", JSONB(none_as_null=True)
    )
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    start_after: Mapped[datetime | None]  # no line is leased before
    run_hours: Mapped[str | None]  # as ``domain.run_hours`` writes them; None: always
    on_invalid: Mapped[str] = mapped_column(server_default="fail")
    dedupe: Mapped[str] = mapped_column(server_default="off")  # how far lines look for equals
    max_cost_nano: Mapped[int | None] = mapped_column(BigInteger)
    on_budget: Mapped[str] = mapped_column(server_default="refuse")  # where money will not do
    output_expires_seconds: Mapped[int | None]
    # A JSON object as bytes: prompts may hold what neither text nor jsonb takes.
    defaults: Mapped[bytes | None]
    # What the job is for, in the caller's words: costs are told by them.
    tags: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))
    p99_bound_ms: Mapped[int | None]  # of a line's total latency; an alert tells when it is passed
    idempotency_key: Mapped[str | None]
    request_sha256: Mapped[bytes]

    state: Mapped[str]
    # A paused job has no shard leased to it; what its state is goes on to be true.
    paused_at: Mapped[datetime | None]
    pause_reason: Mapped[str | None]
    pause_note: Mapped[str | None]  # of a budget's stop: a sentence with figures
    pause_needs_nano: Mapped[int | None] = mapped_column(BigInteger)  # for one more line
    outcome: Mapped[str | None]  # what finalising or cancelling will end in
    # The one model that its lines name; null if they name several, and until they are read.
    model_id: Mapped[UUID | None] = mapped_column(ForeignKey("models.id"))
    total_items: Mapped[int | None]
    invalid_items: Mapped[int] = mapped_column(server_default="0")
    error_count: Mapped[int] = mapped_column(server_default="0")
    output_file_id: Mapped[UUID] = mapped_column(default=new_uuid)
    error_file_id: Mapped[UUID] = mapped_column(default=new_uuid)
    output_lines: Mapped[int | None]  # known once ended
    error_lines: Mapped[int | None]
    reused_lines: Mapped[int | None]  # of the output lines, those that took another's answer
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
    lines_removed_at: Mapped[datetime | None]  # by retention: its partitions are gone


class JobModel(Base):
    """One of the models that a job's lines name, with the price list pinned for it.

    ``lines`` and ``shards`` are those that it began with; a shard has lines of one model. Beside
    them are the ``copies``, lines that take the answers of others (less those that could not).
    """

    __tablename__ = "job_models"
    __table_args__ = (
        CheckConstraint(
            "(lines > 0) = (shards > 0) AND lines >= 0 AND copies >= 0 AND lines + copies > 0",
            name="counts",
        ),
        Index("ix_job_models_model_id_job_id", "model_id", "job_id"),
    )

    job_id: Mapped[UUID] = mapped_column(
        ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True
    )
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"), primary_key=True)
    price_id: Mapped[UUID]
    lines: Mapped[int]
    shards: Mapped[int]
    copies: Mapped[int] = mapped_column(server_default="0")


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
