"""Keys that may send so many requests in a minute: told in OpenAI's words, and kept to."""

from collections.abc import Callable

import httpx2
import openai
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select, text, update
from typer.testing import CliRunner

from runner.cli.app import app as cli
from runner.db.models import ApiKey, AuditEntry
from runner.domain.ids import API_KEY_PREFIX, encode
from runner.runtime import Runtime
from runner.services.request_limits import set_limit

LEFT = "x-ratelimit-remaining-requests"


@pytest.fixture
def limit(runtime: Runtime, api_key: str) -> Callable[..., None]:
    """Limits the key of ``api``, of whose minute some seconds may be used up."""

    def limit(per_minute: int | None, used_seconds: int = 0) -> None:
        with runtime.transaction() as session:
            ours = select(ApiKey.id).where(ApiKey.hint == api_key[:9])
            key_id = session.scalars(ours).one()
            set_limit(session, key_id, per_minute)
            ahead = func.clock_timestamp() + text(f"interval '{used_seconds} seconds'")
            session.execute(update(ApiKey).where(ApiKey.id == key_id).values(requests_until=ahead))

    return limit


def test_a_key_without_a_limit_is_told_of_none(api: FlaskClient) -> None:
    assert not [name for name in api.get("/v1/models").headers if "ratelimit" in name[0].lower()]


def test_requests_count_down_to_a_refusal_that_says_when(
    api: FlaskClient, limit: Callable[..., None]
) -> None:
    limit(3)
    answers = [api.get(path) for path in ("/v1/models", "/v1/batches", "/api/budgets")]
    assert [answer.headers[LEFT] for answer in answers] == ["2", "1", "0"]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"3"}
    refused = api.post("/v1/batches", data=b"{")
    error = refused.get_json()["error"]
    assert (refused.status_code, error["code"]) == (429, "rate_limit_exceeded")
    assert error["type"] == "requests"
    assert error["message"].startswith("Rate limit reached for this API key on requests per min")
    assert 1 <= int(refused.headers["Retry-After"]) <= 20
    assert refused.headers[LEFT] == "0"
    assert refused.headers["x-ratelimit-reset-requests"].endswith("s")
    assert api.get("/api/usage").get_json()["code"] == "rate_limit_exceeded"
    limit(None)
    assert api.get("/v1/models").status_code == 200


def test_a_minute_comes_back_bit_by_bit(api: FlaskClient, limit: Callable[..., None]) -> None:
    limit(60, used_seconds=50)
    assert [api.get("/v1/models").status_code for _ in range(8)] == [200] * 8
    limit(4, used_seconds=60)
    refused = api.get("/v1/models")
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 15
    assert refused.headers["x-ratelimit-reset-requests"].startswith(("1m0", "5", "4"))


def test_a_failed_or_foreign_request_counts_only_for_its_key(
    api: FlaskClient, other: FlaskClient, client: FlaskClient, limit: Callable[..., None]
) -> None:
    limit(2)
    assert api.get("/v1/batches/nonsense").headers[LEFT] == "1"
    assert LEFT not in other.get("/v1/models").headers
    assert client.get("/v1/models").status_code == 401
    assert api.get("/v1/models").headers[LEFT] == "0"


def test_the_official_client_waits_and_tries_again(
    app: Flask, api_key: str, model: str, limit: Callable[..., None]
) -> None:
    limit(600, used_seconds=60)  # the next is due in a tenth of a second
    http = httpx2.Client(transport=httpx2.WSGITransport(app=app))
    with openai.OpenAI(base_url="http://localhost/v1", api_key=api_key, http_client=http) as client:
        assert [one.id for one in client.models.list()] == [model]
        limit(1, used_seconds=60)
        with pytest.raises(openai.RateLimitError, match="Please try again in"):
            client.with_options(max_retries=0).models.list()


def test_the_command_line_sets_and_shows_limits(runtime: Runtime, api_key: str) -> None:
    urls = {"DATABASE_URL": runtime.urls.database_url, "BROKER_URL": runtime.urls.broker_url}
    run = CliRunner(env={**urls, "COLUMNS": "200"})
    with runtime.transaction() as session:
        key_id = encode(API_KEY_PREFIX, session.scalars(select(ApiKey.id)).one())
    told = run.invoke(cli, ["keys", "limit", key_id, "--requests-per-minute", "1200"])
    assert told.output == f"{key_id} may send 1,200 requests in a minute.\n"
    made = ["keys", "create", "--project", "one", "--requests-per-minute", "7", "--json"]
    assert '"requests_per_minute": 7' in run.invoke(cli, made).output
    assert "1200" in run.invoke(cli, ["keys", "ls"]).output
    told = run.invoke(cli, ["keys", "limit", key_id, "--requests-per-minute", "0"])
    assert "as many requests as it likes" in told.output
    assert run.invoke(cli, ["keys", "limit", "x", "--requests-per-minute", "1"]).exit_code == 2
    with runtime.transaction() as session:
        query = select(AuditEntry.detail).where(AuditEntry.action == "key.limit")
        limits = [detail["requests_per_minute"] for detail in session.scalars(query)]
    assert limits == [1200, 7, None]
