"""Uploaded files in chunks, and the views of jobs with their byte index."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    Index,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import BigInteger

from runner.db.models.base import Base
from runner.domain.ids import new_uuid


class File(Base):
    """A file: an uploaded input in chunks, or the view of a job's output or errors."""

    __tablename__ = "files"
    __table_args__ = (
        CheckConstraint("purpose IN ('batch', 'batch_output')", name="purpose"),
        CheckConstraint("view IS NULL OR view IN ('output', 'error')", name="view"),
        CheckConstraint("(purpose = 'batch_output') = (job_id IS NOT NULL)", name="output_of"),
        CheckConstraint("(view IS NULL) = (job_id IS NULL)", name="view_of"),
        CheckConstraint("bytes >= 0", name="bytes_not_negative"),
        Index("ix_files_project_id_id", "project_id", "id"),
        Index("uq_files_job_id_view", "job_id", "view", unique=True),
        Index("ix_files_unpurged", "expires_at", postgresql_where=text("purged_at IS NULL")),
        Index(
            "uq_files_idempotency",
            "project_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    purpose: Mapped[str]
    filename: Mapped[str]
    size: Mapped[int] = mapped_column("bytes", BigInteger)
    sha256: Mapped[bytes | None]
    tags: Mapped[list[str]] = mapped_column(server_default="{}")
    idempotency_key: Mapped[str | None]
    job_id: Mapped[UUID | None]
    view: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    deleted_at: Mapped[datetime | None]
    purged_at: Mapped[datetime | None]  # its bytes are gone, too


class FileChunk(Base):
    """One mebibyte of an uploaded file (the last chunk may be shorter)."""

    __tablename__ = "file_chunks"

    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    chunk_no: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[bytes]


class FileIndex(Base):
    """Where each block of lines of a finished output or error file begins, in bytes."""

    __tablename__ = "file_index"

    file_id: Mapped[UUID] = mapped_column(
        ForeignKey("files.id", ondelete="CASCADE"), primary_key=True
    )
    block_no: Mapped[int] = mapped_column(primary_key=True)  # idx // INDEX_LINES
    byte_offset: Mapped[int] = mapped_column(BigInteger)
