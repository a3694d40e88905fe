"""Profiles of engine workers: orders, and their traces until they are fetched."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column

from runner.db.models.base import Base
from runner.domain.ids import new_uuid


class Profile(Base):
    """An order to one worker to record its next steps; the row goes when the trace is fetched."""

    __tablename__ = "profiles"
    __table_args__ = (
        CheckConstraint("state IN ('asked', 'taken', 'recording', 'done', 'failed')", name="state"),
        CheckConstraint("(state = 'done') = (trace IS NOT NULL)", name="trace"),
        CheckConstraint("(state = 'failed') = (problem IS NOT NULL)", name="problem"),
        CheckConstraint("steps > 0 AND steps_done >= 0", name="steps"),
        Index(
            "uq_profiles_open",
            "worker_id",
            unique=True,
            postgresql_where=text("state IN ('asked', 'taken', 'recording')"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    worker_id: Mapped[UUID] = mapped_column(ForeignKey("workers.id", ondelete="CASCADE"))
    steps: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="asked")
    steps_done: Mapped[int] = mapped_column(server_default="0")
    problem: Mapped[str | None]
    trace: Mapped[bytes | None]  # gzip
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
