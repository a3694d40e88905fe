"""Worker processes, and what each has done for whom of late."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Double

from runner.db.models.base import Base, one_of
from runner.domain.ids import new_uuid
from runner.domain.states import WorkerState


class Worker(Base):
    """One start of a worker: of its process, or of another model in it. Never reused, so a late
    heartbeat cannot revive another."""

    __tablename__ = "workers"
    __table_args__ = (
        CheckConstraint(one_of("state", WorkerState), name="state"),
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
    # What it makes room for: it finishes what it has, and its process loads that.
    next_model_id: Mapped[UUID | None] = mapped_column(ForeignKey("models.id"))
    description: Mapped[str] = mapped_column(server_default="")
    lane: Mapped[str] = mapped_column(server_default="")  # empty until it is ready
    lane_reason: Mapped[str] = mapped_column(server_default="")
    state: Mapped[str]
    rows: Mapped[int] = mapped_column(server_default="0")  # sequences it runs at once
    started_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    drained_at: Mapped[datetime | None]  # since when an operator wants it to lease nothing
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]
    busy_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    idle_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    load_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    wasted_us: Mapped[int] = mapped_column(BigInteger, server_default="0")
    stale_results: Mapped[int] = mapped_column(server_default="0")
    stats: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'"))


class FairShare(Base):
    """What a project has lately had of one worker; both figures halve with each minute.

    A row per worker, so that no two processes wait for each other to write it. No foreign keys: it
    is forgotten within the hour.
    """

    __tablename__ = "fair_shares"

    project_id: Mapped[UUID] = mapped_column(primary_key=True)
    worker_id: Mapped[UUID] = mapped_column(primary_key=True)
    device_us: Mapped[float] = mapped_column(Double)
    lines: Mapped[float] = mapped_column(Double)
    as_of: Mapped[datetime]
