"""Addresses that want to hear of events, and what was sent to them."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, func, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger, Text

from runner.db.models.base import Base, one_of
from runner.domain.ids import new_uuid
from runner.domain.states import DeliveryState


class Webhook(Base):
    """An address of a project. Its secrets sign, so they are kept as they are."""

    __tablename__ = "webhooks"
    __table_args__ = (
        CheckConstraint("char_length(url) BETWEEN 1 AND 2000", name="url_length"),
        CheckConstraint("char_length(description) <= 200", name="description_length"),
        CheckConstraint(
            "(previous_secret IS NULL) = (previous_secret_until IS NULL)", name="previous_secret"
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), index=True)
    url: Mapped[str]
    description: Mapped[str] = mapped_column(server_default="")
    kinds: Mapped[list[str]] = mapped_column(ARRAY(Text))  # empty: every kind
    secret: Mapped[str]
    previous_secret: Mapped[str | None]
    previous_secret_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    paused_at: Mapped[datetime | None]
    pause_reason: Mapped[str | None]


class Delivery(Base):
    """One event on its way to one address; a replay is another delivery of the same event."""

    __tablename__ = "deliveries"
    __table_args__ = (
        CheckConstraint(one_of("state", DeliveryState), name="state"),
        CheckConstraint("(state = 'waiting') = (ended_at IS NULL)", name="ended"),
        Index("ix_deliveries_due", "not_before", postgresql_where=text("state = 'waiting'")),
        Index("ix_deliveries_webhook_id", "webhook_id", "id"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    webhook_id: Mapped[UUID] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event_id: Mapped[int] = mapped_column(
        BigInteger, ForeignKey("outbox.id", ondelete="CASCADE"), index=True
    )
    state: Mapped[str] = mapped_column(server_default=DeliveryState.WAITING)
    attempts: Mapped[int] = mapped_column(server_default="0")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    not_before: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]


class DeliveryAttempt(Base):
    """What came of one try. The body of the answer is not kept: it is a stranger's."""

    __tablename__ = "delivery_attempts"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    delivery_id: Mapped[UUID] = mapped_column(
        ForeignKey("deliveries.id", ondelete="CASCADE"), index=True
    )
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    status: Mapped[int | None]  # of the answer, if one came
    fault: Mapped[str | None]  # why none came, or why it is not good
    duration_ms: Mapped[int]
