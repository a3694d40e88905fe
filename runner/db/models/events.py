"""What is told to the outside, and who did what."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ForeignKey,
    Identity,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from runner.db.models.base import Base


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
