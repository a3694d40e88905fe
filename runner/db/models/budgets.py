"""What may be spent in a month, what was, and who was told of it.

A payer is a project or one of its API keys, by the id of either.
"""

from datetime import date, datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, func
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Date, SmallInteger

from runner.db.models.base import Base


class Budget(Base):
    """What a payer may be billed in each calendar month (UTC)."""

    __tablename__ = "budgets"
    __table_args__ = (
        CheckConstraint("limit_nano >= 0", name="not_negative"),
        CheckConstraint("payer_id = coalesce(api_key_id, project_id)", name="payer"),
    )

    payer_id: Mapped[UUID] = mapped_column(primary_key=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), index=True)
    api_key_id: Mapped[UUID | None] = mapped_column(ForeignKey("api_keys.id"))
    limit_nano: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Spending(Base):
    """What one worker's accepted lines billed a payer in a month.

    A row for each worker, so that commits never wait for each other. It says the same as the
    ledger, whether or not there is a budget. No foreign keys: it outlives keys and workers.
    """

    __tablename__ = "spending"

    payer_id: Mapped[UUID] = mapped_column(primary_key=True)
    month: Mapped[date] = mapped_column(Date, primary_key=True)  # its first day
    worker_id: Mapped[UUID] = mapped_column(primary_key=True)
    billed_nano: Mapped[int] = mapped_column(BigInteger)


class BudgetAlert(Base):
    """Somebody was told that so much of a limit is spent; a changed limit is told of anew.

    The payer may also be a job with a limit of its own; its month is that of its creation.
    """

    __tablename__ = "budget_alerts"

    payer_id: Mapped[UUID] = mapped_column(primary_key=True)
    month: Mapped[date] = mapped_column(Date, primary_key=True)
    limit_nano: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    percent: Mapped[int] = mapped_column(SmallInteger, primary_key=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
