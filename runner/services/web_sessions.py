"""Sign-ins of browsers: a random token for an API key, ended by time, by hand or with the key."""

import hashlib
import secrets
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from runner.db.models import ApiKey, Project, WebSession
from runner.domain.ids import ApiKeyId, ProjectId
from runner.services.audit import record
from runner.services.keys import Caller, authenticate

IDLE = timedelta(hours=12)
LIFE = timedelta(days=7)
_KEPT = timedelta(days=30)  # after its end, for whoever asks who was signed in
_TOKEN_BYTES = 32
_SEEN_EVERY = timedelta(minutes=1)  # as for keys: last_seen_at is coarse


@dataclass(frozen=True, slots=True)
class SignedIn:
    """Who uses a browser: the caller behind the key, and names to show."""

    caller: Caller
    project: str
    key_hint: str


def begin_session(session: Session, secret: str) -> str:
    """Sign in with a key; returns the new session's token, which is kept only as a hash.

    Raises:
        Unauthenticated: the key is unknown, revoked or expired.
    """
    caller = authenticate(session, secret)
    session.execute(delete(WebSession).where(WebSession.expires_at < func.now() - _KEPT))
    token = secrets.token_urlsafe(_TOKEN_BYTES)
    session.add(
        WebSession(
            token_sha256=_hash(token),
            project_id=caller.project_id,
            api_key_id=caller.api_key_id,
            expires_at=func.now() + LIFE,
        )
    )
    _record(session, "session.begin", caller)
    return token


def find_session(session: Session, token: str) -> SignedIn | None:
    """Who holds a token; None when it is unknown or over, or its key is."""
    query = (
        select(WebSession, ApiKey.hint, Project.name, func.now().label("now"))
        .join(ApiKey, ApiKey.id == WebSession.api_key_id)
        .join(Project, Project.id == WebSession.project_id)
        .where(
            WebSession.token_sha256 == _hash(token),
            WebSession.ended_at.is_(None),
            WebSession.expires_at > func.now(),
            WebSession.last_seen_at > func.now() - IDLE,
            ApiKey.revoked_at.is_(None),
            or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > func.now()),
        )
    )
    found = session.execute(query).one_or_none()
    if found is None:
        return None
    row = found.WebSession
    if found.now - row.last_seen_at > _SEEN_EVERY:
        row.last_seen_at = found.now
    caller = Caller(ProjectId(row.project_id), ApiKeyId(row.api_key_id))
    return SignedIn(caller, found.name, found.hint)


def end_session(session: Session, token: str) -> None:
    """Sign out; a token that is unknown or over changes nothing."""
    row = session.scalars(
        update(WebSession)
        .where(WebSession.token_sha256 == _hash(token), WebSession.ended_at.is_(None))
        .values(ended_at=func.now())
        .returning(WebSession)
    ).one_or_none()
    if row is not None:
        caller = Caller(ProjectId(row.project_id), ApiKeyId(row.api_key_id))
        _record(session, "session.end", caller)


def _record(session: Session, action: str, caller: Caller) -> None:
    subject = str(caller.api_key_id)
    record(session, action, subject, project_id=caller.project_id, actor="page")


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
