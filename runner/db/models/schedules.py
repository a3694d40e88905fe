"""Schedules, and their runs: one for each planned time, which the database sees to."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import SmallInteger

from runner.db.models.base import Base, one_of
from runner.domain.ids import new_uuid
from runner.domain.reuse import Dedupe

_LIVES = "state = 'active' AND deleted_at IS NULL"


class Schedule(Base):
    """What to run and when. A deleted one stays, for its jobs and their costs."""

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint("char_length(name) BETWEEN 1 AND 100", name="name_length"),
        CheckConstraint("state IN ('active', 'paused')", name="state"),
        CheckConstraint("catch_up IN ('skip', 'latest', 'all')", name="catch_up"),
        CheckConstraint("overlap IN ('skip', 'queue', 'allow')", name="overlap"),
        CheckConstraint("on_invalid IN ('fail', 'skip')", name="on_invalid"),
        CheckConstraint(one_of("dedupe", Dedupe), name="dedupe"),
        CheckConstraint("max_cost_nano >= 0 AND on_budget IN ('refuse', 'pause')", name="budget"),
        CheckConstraint("num_nonnulls(input_file_id, input_tag, input_path) = 1", name="one_input"),
        CheckConstraint(f"next_at IS NOT NULL OR NOT ({_LIVES})", name="next"),
        Index(
            "uq_schedules_name",
            "project_id",
            "name",
            unique=True,
            postgresql_where=text("deleted_at IS NULL"),
        ),
        Index("ix_schedules_next_at", "next_at", postgresql_where=text(_LIVES)),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    api_key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"))
    name: Mapped[str]
    cron: Mapped[str]
    zone: Mapped[str]
    catch_up: Mapped[str]
    overlap: Mapped[str]

    input_file_id: Mapped[UUID | None] = mapped_column(ForeignKey("files.id"), index=True)
    input_tag: Mapped[str | None]
    input_path: Mapped[str | None]
    output_path: Mapped[str | None]

    endpoint: Mapped[str]
    completion_window: Mapped[str]
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    on_invalid: Mapped[str] = mapped_column(server_default="skip")
    dedupe: Mapped[str] = mapped_column(server_default="off")  # of each job
    job_metadata: Mapped[dict[str, str] | None] = mapped_column(
        "metadata", JSONB(none_as_null=True)
    )
    defaults: Mapped[bytes | None]
    max_cost_nano: Mapped[int | None] = mapped_column(BigInteger)  # of each job
    on_budget: Mapped[str] = mapped_column(server_default="refuse")
    run_hours: Mapped[str | None]
    tags: Mapped[list[str]] = mapped_column(server_default=text("'{}'"))

    state: Mapped[str] = mapped_column(server_default="active")
    problem: Mapped[str | None]  # why it was paused, where no person did it
    next_at: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    deleted_at: Mapped[datetime | None]


class ScheduleRun(Base):
    """One planned time of a schedule: the job it became, or why it became none."""

    __tablename__ = "schedule_runs"
    __table_args__ = (
        UniqueConstraint("schedule_id", "planned_at"),
        CheckConstraint("trigger IN ('cron', 'catch_up', 'manual')", name="trigger"),
        CheckConstraint("state IN ('waiting', 'started', 'skipped', 'failed')", name="state"),
        CheckConstraint("(state = 'started') = (job_id IS NOT NULL)", name="job"),
        CheckConstraint(
            "state NOT IN ('skipped', 'failed') OR (code IS NOT NULL AND reason IS NOT NULL)",
            name="reason",
        ),
        CheckConstraint("output_state IN ('none', 'waiting', 'written', 'failed')", name="output"),
        Index(
            "ix_schedule_runs_open",
            "next_try_at",
            postgresql_where=text("state = 'waiting' OR output_state = 'waiting'"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    schedule_id: Mapped[UUID] = mapped_column(ForeignKey("schedules.id"))
    planned_at: Mapped[datetime]
    trigger: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="waiting")
    code: Mapped[str | None]
    reason: Mapped[str | None]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("jobs.id"), unique=True)
    started_at: Mapped[datetime | None]
    output_state: Mapped[str] = mapped_column(server_default="none")
    output_problem: Mapped[str | None]
    tries: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    next_try_at: Mapped[datetime] = mapped_column(server_default=func.now())
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
