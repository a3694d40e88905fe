"""Sign-ins of browsers: what ends one, and what a stolen database would tell."""

from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import ApiKey, AuditEntry, WebSession
from runner.domain.errors import Unauthenticated
from runner.services import keys, web_sessions
from runner.services.web_sessions import IDLE, LIFE, SignedIn


@pytest.fixture
def secret(workshop: Workshop) -> str:
    with workshop.sessions.begin() as session:
        return keys.create_key(session, "house")[1]


@pytest.fixture
def token(workshop: Workshop, secret: str) -> str:
    with workshop.sessions.begin() as session:
        return web_sessions.begin_session(session, secret)


def _find(workshop: Workshop, token: str) -> SignedIn | None:
    with workshop.sessions.begin() as session:
        return web_sessions.find_session(session, token)


def test_a_token_finds_the_project_and_the_key_that_signed_in(
    workshop: Workshop, token: str, secret: str
) -> None:
    found = _find(workshop, token)
    assert found is not None
    assert found.caller.project_id == workshop.caller.project_id
    assert (found.project, found.key_hint) == ("house", secret[:9])
    assert _find(workshop, token + "x") is None


def test_a_key_that_is_wrong_begins_nothing(workshop: Workshop) -> None:
    with workshop.sessions.begin() as session, pytest.raises(Unauthenticated):
        web_sessions.begin_session(session, "tm-wrong")
    assert workshop.scalar(select(func.count()).select_from(WebSession)) == 0


def test_the_token_itself_is_nowhere_in_the_database(workshop: Workshop, token: str) -> None:
    assert len(token) >= 43  # 256 bits
    with workshop.sessions() as session:
        row = session.scalars(select(WebSession)).one()
        entries = session.scalars(select(AuditEntry)).all()
    assert token.encode() not in row.token_sha256
    assert not any(token in f"{entry.subject}{entry.detail}" for entry in entries)
    assert "session.begin" in {entry.action for entry in entries}


def test_a_session_ends_when_it_is_signed_out(workshop: Workshop, token: str) -> None:
    for _ in range(2):
        with workshop.sessions.begin() as session:
            web_sessions.end_session(session, token)
        assert _find(workshop, token) is None
    ends = select(func.count()).where(AuditEntry.action == "session.end")
    assert workshop.scalar(ends) == 1


@pytest.mark.parametrize(
    "values",
    [
        {"last_seen_at": func.now() - IDLE - timedelta(seconds=1)},
        {"expires_at": func.now() - timedelta(seconds=1)},
    ],
    ids=["idle", "old"],
)
def test_a_session_ends_by_itself(
    workshop: Workshop, token: str, values: dict[str, object]
) -> None:
    workshop.execute(update(WebSession).values(values))
    assert _find(workshop, token) is None


def test_use_keeps_a_session_alive_but_not_beyond_its_life(workshop: Workshop, token: str) -> None:
    workshop.execute(update(WebSession).values(last_seen_at=func.now() - IDLE / 2))
    assert _find(workshop, token) is not None
    with workshop.sessions() as session:
        row = session.scalars(select(WebSession)).one()
    assert row.last_seen_at > row.created_at
    assert row.expires_at - row.created_at == LIFE


@pytest.mark.parametrize("column", ["revoked_at", "expires_at"])
def test_a_session_ends_with_its_key(workshop: Workshop, token: str, column: str) -> None:
    workshop.execute(update(ApiKey).values({column: func.now()}))
    assert _find(workshop, token) is None


def test_revoking_a_key_notes_the_end_of_its_sessions(workshop: Workshop, token: str) -> None:
    with workshop.sessions.begin() as session:
        keys.revoke_key(session, session.scalars(select(WebSession.api_key_id)).one())
    assert _find(workshop, token) is None
    assert workshop.scalar(select(WebSession.ended_at)) is not None


def test_sessions_long_over_are_forgotten(workshop: Workshop, token: str, secret: str) -> None:
    workshop.execute(update(WebSession).values(expires_at=func.now() - timedelta(days=31)))
    with workshop.sessions.begin() as session:
        web_sessions.begin_session(session, secret)
    assert workshop.scalar(select(func.count()).select_from(WebSession)) == 1
