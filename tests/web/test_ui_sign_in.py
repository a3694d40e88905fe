"""Signing in and out, and what a change needs to be believed."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select, update
from visitor import Visitor, token_of
from werkzeug.test import TestResponse

from runner.db.models import ApiKey, Job, WebSession
from runner.domain.ids import JOB_PREFIX, encode, new_uuid
from runner.runtime import Runtime
from runner.services import keys
from runner.services.web_sessions import IDLE

SESSION = "tokenmill_session"


def _sign_in(client: FlaskClient, key: str, **fields: str) -> TestResponse:
    token = token_of(client.get("/signin").text)
    return client.post("/signin", data={"csrf_token": token, "key": key} | fields)


def _count(runtime: Runtime, table: type[Job] | type[WebSession]) -> int:
    with runtime.sessions() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_a_key_opens_a_session_in_a_cookie_that_scripts_cannot_read(
    client: FlaskClient, api_key: str
) -> None:
    answer = _sign_in(client, f"  {api_key}\n")
    assert (answer.status_code, answer.location) == (303, "/")
    [cookie] = [text for text in answer.headers.getlist("Set-Cookie") if SESSION in text]
    assert "; HttpOnly" in cookie
    assert "; SameSite=Lax" in cookie
    assert "; Path=/" in cookie
    assert "Secure" not in cookie
    assert api_key not in cookie
    page = client.get("/").text
    assert api_key not in page
    assert api_key[:9] in page


def test_under_https_the_cookies_are_bound_to_it_and_to_the_host(app: Flask, api_key: str) -> None:
    client = app.test_client()
    page = client.get("/signin", base_url="https://mill.example")
    form = {"csrf_token": token_of(page.text), "key": api_key}
    answer = client.post("/signin", data=form, base_url="https://mill.example")
    assert answer.status_code == 303
    for cookie in [*page.headers.getlist("Set-Cookie"), *answer.headers.getlist("Set-Cookie")]:
        assert cookie.startswith("__Host-tokenmill_")
        assert "; Secure" in cookie
        assert "Domain" not in cookie


@pytest.mark.parametrize("key", ["", "tm-wrong", "\x00", "ü", "x" * 5000])
def test_a_wrong_key_opens_nothing_and_says_so(
    client: FlaskClient, runtime: Runtime, key: str
) -> None:
    answer = _sign_in(client, key)
    assert answer.status_code == 401
    assert "Incorrect API key" in answer.text
    assert "WWW-Authenticate" not in answer.headers  # the browser would ask for a password
    assert client.get_cookie(SESSION) is None
    assert _count(runtime, WebSession) == 0


def test_signing_in_again_ends_the_session_before(visitor: Visitor, api_key: str) -> None:
    client = visitor.client
    before = client.get_cookie(SESSION)
    assert before is not None
    assert _sign_in(client, api_key).status_code == 303
    after = client.get_cookie(SESSION)
    assert after is not None
    assert before.value != after.value
    assert client.get("/").status_code == 200
    client.set_cookie(SESSION, before.value)
    assert client.get("/").status_code == 303


def test_signing_out_ends_the_session_for_every_copy_of_the_cookie(visitor: Visitor) -> None:
    cookie = visitor.client.get_cookie(SESSION)
    assert cookie is not None
    answer = visitor.post("/signout")
    assert (answer.status_code, answer.location) == (303, "/signin")
    assert visitor.client.get_cookie(SESSION) is None
    visitor.client.set_cookie(SESSION, cookie.value)
    assert visitor.get("/").status_code == 303


def test_idle_old_and_revoked_sessions_lead_to_the_sign_in_page(
    runtime: Runtime, sign_in: Callable[[str], Visitor], api_key: str
) -> None:
    idle = update(WebSession).values(last_seen_at=func.now() - IDLE - timedelta(seconds=1))
    old = update(WebSession).values(expires_at=func.now())
    for end in (idle, old):
        visitor = sign_in(api_key)
        assert visitor.get("/").status_code == 200
        with runtime.transaction() as session:
            session.execute(end)
        assert visitor.get("/").location == "/signin"
    visitor = sign_in(api_key)
    with runtime.transaction() as session:
        keys.revoke_key(session, session.scalars(select(ApiKey.id)).one())
    assert visitor.get("/").location == "/signin"
    assert _sign_in(visitor.client, api_key).status_code == 401


def test_whoever_wanted_a_job_gets_there_after_signing_in(
    client: FlaskClient, api_key: str
) -> None:
    job_id = encode(JOB_PREFIX, new_uuid())
    way_in = client.get(f"/jobs/{job_id}").location
    assert f'name="job" value="{job_id}"' in client.get(way_in).text
    assert _sign_in(client, api_key, job=job_id).location == f"/jobs/{job_id}"


@pytest.mark.parametrize("job", ["//evil.example", "https://evil.example", "../x", "\r\nX: y"])
def test_signing_in_leads_nowhere_else(client: FlaskClient, api_key: str, job: str) -> None:
    assert _sign_in(client, api_key, job=job).location == "/"


def test_a_part_that_is_polled_sends_the_whole_page_to_the_sign_in(client: FlaskClient) -> None:
    answer = client.get("/live", headers={"HX-Request": "true"})
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/signin")


CHANGES = [
    "/signout",
    "/jobs",
    "/jobs/JOB/cancel",
    "/jobs/JOB/pause",
    "/jobs/JOB/resume",
    "/budgets",
]
STRANGE: list[dict[str, str]] = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost"},
]


@pytest.fixture
def change(
    visitor: Visitor, make_batch: Callable[..., dict[str, object]]
) -> Callable[..., TestResponse]:
    """Asks for a change with any token and headers."""
    job_id = str(make_batch()["id"])

    def change(path: str, token: str, headers: dict[str, str] | None = None) -> TestResponse:
        path = path.replace("JOB", job_id)
        sent = {"data": {"csrf_token": token}}
        if path == "/jobs":
            parts = (("csrf_token", token), ("purpose", "batch"), ("file", b"{}", "a.jsonl"))
            sent = visitor.write_form(*parts)
        return visitor.client.post(path, headers=headers or {}, **sent)

    return change


def test_a_change_without_this_sessions_token_is_refused(
    change: Callable[..., TestResponse],
    visitor: Visitor,
    other_visitor: Visitor,
    runtime: Runtime,
) -> None:
    guest = token_of(visitor.get("/signin").text)
    before = _count(runtime, Job)
    for path in CHANGES:
        for token in ("", "0" * 64, "ü", other_visitor.token(), guest):
            answer = change(path, token)
            assert answer.status_code == 403, (path, token)
            assert "no longer valid" in answer.text
    assert _count(runtime, Job) == before
    assert visitor.get("/").status_code == 200


def test_a_change_that_another_site_asked_for_is_refused(
    change: Callable[..., TestResponse], visitor: Visitor, runtime: Runtime
) -> None:
    before = _count(runtime, Job)
    for path in ("/signin", *CHANGES):
        for headers in STRANGE:
            assert change(path, visitor.token(), headers).status_code == 403, (path, headers)
    assert _count(runtime, Job) == before
    assert visitor.get("/").status_code == 200


def test_a_change_from_our_own_page_is_believed(
    change: Callable[..., TestResponse], visitor: Visitor
) -> None:
    ours = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert change("/jobs", visitor.token(), ours).status_code == 303
    in_header = ours | {"X-CSRF-Token": visitor.token()}
    assert change("/jobs/JOB/cancel", "", in_header).status_code == 303


def test_a_sign_in_form_is_good_for_one_browser_only(app: Flask, api_key: str) -> None:
    """Else a stranger could sign a visitor in to the stranger's own project."""
    token = token_of(app.test_client().get("/signin").text)
    victim = app.test_client()
    victim.get("/signin")
    for client in (victim, app.test_client()):
        answer = client.post("/signin", data={"csrf_token": token, "key": api_key})
        assert answer.status_code == 403
        assert client.get_cookie(SESSION) is None
