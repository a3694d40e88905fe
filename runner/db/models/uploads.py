"""Uploads that come in parts, until they become files."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, func, text
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from runner.db.models.base import Base
from runner.domain.ids import new_uuid


class Upload(Base):
    """A file that is announced and comes in parts; pending until completed, cancelled or late."""

    __tablename__ = "uploads"
    __table_args__ = (
        CheckConstraint("state IN ('pending', 'completed', 'cancelled')", name="state"),
        CheckConstraint("(state = 'completed') = (file_id IS NOT NULL)", name="file"),
        CheckConstraint("bytes > 0", name="bytes_positive"),
        Index("ix_uploads_pending", "expires_at", postgresql_where=text("state = 'pending'")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    filename: Mapped[str]
    size: Mapped[int] = mapped_column("bytes", BigInteger)  # as announced
    file_expires_seconds: Mapped[int | None]
    state: Mapped[str] = mapped_column(server_default="pending")
    file_id: Mapped[UUID | None] = mapped_column(ForeignKey("files.id"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]


class UploadPart(Base):
    """A run of an upload's bytes; the order of the parts is told when they are put together."""

    __tablename__ = "upload_parts"

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    upload_id: Mapped[UUID] = mapped_column(
        ForeignKey("uploads.id", ondelete="CASCADE"), index=True
    )
    size: Mapped[int] = mapped_column("bytes", BigInteger)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class UploadChunk(Base):
    """One mebibyte of a part (the last may be shorter)."""

    __tablename__ = "upload_chunks"

    part_id: Mapped[UUID] = mapped_column(
        ForeignKey("upload_parts.id", ondelete="CASCADE"), primary_key=True
    )
    chunk_no: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]
