"""Projects, their API keys, and the browsers that signed in with one."""

from datetime import datetime
from uuid import UUID

from sqlalchemy import (
    CheckConstraint,
    ForeignKey,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.types import SmallInteger

from runner.db.models.base import Base
from runner.domain.ids import new_uuid


class Project(Base):
    """A tenant: everything else belongs to one."""

    __tablename__ = "projects"
    __table_args__ = (
        UniqueConstraint("name"),
        CheckConstraint("char_length(name) BETWEEN 1 AND 100", name="name_length"),
        CheckConstraint("weight BETWEEN 1 AND 100", name="weight"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    name: Mapped[str]
    weight: Mapped[int] = mapped_column(SmallInteger, server_default="1")  # of its share
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class ApiKey(Base):
    """A bearer key; only its SHA-256 is kept."""

    __tablename__ = "api_keys"
    __table_args__ = (
        UniqueConstraint("secret_sha256"),
        CheckConstraint("octet_length(secret_sha256) = 32", name="hash_length"),
        CheckConstraint("requests_per_minute > 0", name="requests_per_minute"),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True, default=new_uuid)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"), index=True)
    name: Mapped[str]
    hint: Mapped[str]  # the first letters, to tell keys apart
    secret_sha256: Mapped[bytes]
    # Whether it may act on what all projects share, such as workers.
    is_operator: Mapped[bool] = mapped_column(server_default=text("false"))
    requests_per_minute: Mapped[int | None]  # None: as many as it likes
    # The clock of its requests: each puts it forward by its part of a minute.
    requests_until: Mapped[datetime | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class WebSession(Base):
    """A browser that signed in with a key; only the SHA-256 of its token is kept."""

    __tablename__ = "sessions"
    __table_args__ = (CheckConstraint("octet_length(token_sha256) = 32", name="hash_length"),)

    token_sha256: Mapped[bytes] = mapped_column(primary_key=True)
    project_id: Mapped[UUID] = mapped_column(ForeignKey("projects.id"))
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"), index=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
