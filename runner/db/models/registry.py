"""Models that lines may name, and their prices."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    UniqueConstraint,
    func,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from runner.db.models.base import Base
from runner.domain.ids import new_uuid


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
        CheckConstraint("reused_nano_per_million >= 0", name="reused_not_negative"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    model_id: Mapped[UUID] = mapped_column(ForeignKey("models.id"))
    valid_from: Mapped[datetime]
    currency: Mapped[str] = mapped_column(server_default="USD")
    input_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    cached_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    output_nano_per_million: Mapped[int] = mapped_column(BigInteger)
    device_nano_per_hour: Mapped[int] = mapped_column(BigInteger)
    # Of lines that take the answer of another, which has paid for its tokens.
    reused_nano_per_million: Mapped[int] = mapped_column(BigInteger, server_default="0")
