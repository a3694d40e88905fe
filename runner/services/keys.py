"""API keys of projects. A key's secret is shown once and kept only as a hash."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.models import ApiKey, Project, WebSession
from runner.domain.errors import NotFound, Unauthenticated
from runner.domain.ids import ApiKeyId, ProjectId
from runner.services.audit import record
from runner.services.projects import ensure_project

SECRET_PREFIX = "tm-"
_SECRET_BYTES = 32
_HINT_LETTERS = 9
_SEEN_EVERY = timedelta(minutes=1)  # last_used_at is coarse: a hot row would cost more


@dataclass(frozen=True, slots=True)
class Caller:
    """Who is asking: the project that owns what is made, the key that asked, and its limit."""

    project_id: ProjectId
    api_key_id: ApiKeyId | None = None
    requests_per_minute: int | None = None


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """What may be shown of a key."""

    id: ApiKeyId
    project: str
    name: str
    hint: str
    is_operator: bool
    requests_per_minute: int | None
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


def create_key(
    session: Session, project: str, name: str = "default", is_operator: bool = False
) -> tuple[KeyRecord, str]:
    """Make a key for a project (made if new); returns its record and the secret, shown once.

    An operator's key may also act on what all projects share.
    """
    project_id = ensure_project(session, project)
    secret = SECRET_PREFIX + secrets.token_urlsafe(_SECRET_BYTES)
    row = ApiKey(
        project_id=project_id,
        name=name,
        hint=secret[:_HINT_LETTERS],
        secret_sha256=_hash(secret),
        is_operator=is_operator,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    detail = {"is_operator": True} if is_operator else None
    record(session, "key.create", str(row.id), project_id=project_id, detail=detail)
    return _record_of(row, project), secret


def authenticate(session: Session, secret: str) -> Caller:
    """The caller behind a bearer secret.

    Raises:
        Unauthenticated: unknown, revoked or expired; the text does not say which.
    """
    row = session.scalars(select(ApiKey).where(ApiKey.secret_sha256 == _hash(secret))).one_or_none()
    now = session.scalar(select(func.now()))
    if row is None or now is None or row.revoked_at is not None or _is_past(row.expires_at, now):
        raise Unauthenticated("Incorrect API key provided. Make one with: tokenmill keys create.")
    if row.last_used_at is None or now - row.last_used_at > _SEEN_EVERY:
        session.execute(update(ApiKey).where(ApiKey.id == row.id).values(last_used_at=now))
    return Caller(ProjectId(row.project_id), ApiKeyId(row.id), row.requests_per_minute)


def revoke_key(session: Session, key_id: UUID) -> None:
    """End a key and its sign-ins at once; revoking it again changes nothing."""
    row = session.get(ApiKey, key_id)
    if row is None:
        raise NotFound("There is no such key; see: tokenmill keys ls.")
    if row.revoked_at is None:
        session.execute(update(ApiKey).where(ApiKey.id == key_id).values(revoked_at=func.now()))
        session.execute(
            update(WebSession)
            .where(WebSession.api_key_id == key_id, WebSession.ended_at.is_(None))
            .values(ended_at=func.now())
        )
        record(session, "key.revoke", str(key_id), project_id=row.project_id)


def list_keys(session: Session) -> list[KeyRecord]:
    """All keys, oldest first."""
    rows = session.execute(select(ApiKey, Project.name).join(Project).order_by(ApiKey.id))
    return [_record_of(row, project) for row, project in rows]


def live_keys(session: Session, project_id: ProjectId) -> list[tuple[ApiKeyId, str]]:
    """A project's keys that are not revoked, with their names, oldest first."""
    query = select(ApiKey.id, ApiKey.name).where(
        ApiKey.project_id == project_id, ApiKey.revoked_at.is_(None)
    )
    return [(ApiKeyId(row.id), row.name) for row in session.execute(query.order_by(ApiKey.id))]


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _is_past(moment: datetime | None, now: datetime) -> bool:
    return moment is not None and moment <= now


def _record_of(row: ApiKey, project: str) -> KeyRecord:
    return KeyRecord(
        id=ApiKeyId(row.id),
        project=project,
        name=row.name,
        hint=row.hint,
        is_operator=row.is_operator,
        requests_per_minute=row.requests_per_minute,
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
