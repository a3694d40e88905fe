"""For how long an installation keeps the lines of jobs that have ended."""

from datetime import datetime

from sqlalchemy import CheckConstraint, func
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import SmallInteger

from runner.db.models.base import Base


class Retention(Base):
    """The rule, in one row at most; without one, or without days, lines are kept for ever."""

    __tablename__ = "retention"
    __table_args__ = (
        CheckConstraint("id = 1", name="one_row"),
        CheckConstraint("days BETWEEN 7 AND 3650", name="days"),
    )

    id: Mapped[int] = mapped_column(SmallInteger, primary_key=True, server_default="1")
    days: Mapped[int | None]
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    applied_at: Mapped[datetime | None]
