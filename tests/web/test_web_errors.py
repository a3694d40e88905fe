"""What every answer has in common, and what is said when things go wrong."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from runner.config import Settings
from runner.db.session import create_session_factory
from runner.embedded import ServiceUrls
from runner.runtime import Runtime, open_runtime
from web import create_app

NOBODY = "127.0.0.1:1"  # nothing listens there
REFUSED = [
    ("GET", "/v1/nope", 404, "not_found"),
    ("GET", "/v1/", 404, "not_found"),
    ("GET", "/v1/files/", 404, "not_found"),
    ("GET", "/v1/fi\0les", 404, "not_found"),
    ("PUT", "/v1/files", 405, "method_not_allowed"),
    ("DELETE", "/v1/batches", 405, "method_not_allowed"),
    ("GET", "/v1/models/none/such", 404, "model_not_found"),
    ("GET", "/v1/batches?a=%00", 400, "bad_request"),
]


@pytest.fixture
def without_database(runtime: Runtime) -> Iterator[FlaskClient]:
    """A client of an application whose database is away."""
    url = f"postgresql+psycopg://nobody@{NOBODY}/nothing"
    urls = ServiceUrls(url, runtime.urls.broker_url)
    lost = replace(runtime, urls=urls, sessions=create_session_factory(url))
    client = create_app(lost).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = "Bearer tm-any"
    yield client
    lost.sessions.kw["bind"].dispose()


@contextmanager
def without_broker(settings: Settings, api_key: str) -> Iterator[FlaskClient]:
    """A client of a new application whose broker is away."""
    lonely = open_runtime(settings.model_copy(update={"broker_url": f"redis://{NOBODY}/0"}))
    client = create_app(lonely).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {api_key}"
    yield client
    lonely.close()


def test_every_error_of_v1_has_the_envelope(api: FlaskClient) -> None:
    for method, path, status, code in REFUSED:
        answer = api.open(path, method=method)
        assert answer.status_code == status, path
        assert answer.headers["Content-Type"] == "application/json"
        assert set(answer.get_json()) == {"error"}
        error = answer.get_json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert (error["type"], error["code"]) == ("invalid_request_error", code)
        assert (status == 405) == ("Allow" in answer.headers)


def test_errors_elsewhere_are_problems(client: FlaskClient) -> None:
    for path in ("/nope", "/api/jobs", "/api/nope", "/v2/files", "/v1"):
        answer = client.get(path)
        assert answer.status_code == 404
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert answer.get_json()["status"] == 404


def test_every_answer_has_an_id_and_safe_headers(api: FlaskClient) -> None:
    for path in ("/livez", "/v1/files", "/v1/nope", "/api/nope", "/nope"):
        first, second = api.get(path), api.get(path)
        assert first.headers["x-request-id"].startswith("req_")
        assert first.headers["x-request-id"] != second.headers["x-request-id"]
        assert first.headers["X-Content-Type-Options"] == "nosniff"
        assert first.headers["Content-Security-Policy"].startswith("default-src 'none'")
        assert first.headers["Cache-Control"] == "no-store"


def test_a_fault_of_ours_is_logged_without_what_it_held(
    app: Flask, api_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    prompt = " ".join(["a", "prompt", "of", "a", "customer"])

    def fail() -> str:
        raise ValueError(prompt)

    app.add_url_rule("/v1/fail", view_func=fail)
    with caplog.at_level(logging.ERROR, "web"):
        answer = app.test_client().get(
            "/v1/fail?canary", headers={"Authorization": f"Bearer {api_key}"}
        )
    assert answer.status_code == 500
    assert answer.get_json()["error"]["type"] == "server_error"
    assert "ValueError in GET /v1/fail" in caplog.text
    assert caplog.records[0].request_id == answer.headers["x-request-id"]
    for secret in (prompt, "canary", api_key):
        assert secret not in caplog.text
        assert secret not in answer.text


def test_a_failed_view_leaves_nothing(
    app: Flask, api: FlaskClient, monkeypatch: pytest.MonkeyPatch, upload: Callable[..., Any]
) -> None:
    file = upload()

    def fail(_gone: object) -> None:
        raise ValueError

    monkeypatch.setattr("web.api.files.deleted_file_object", fail)
    assert api.delete(f"/v1/files/{file['id']}").status_code == 500
    assert api.get(f"/v1/files/{file['id']}").status_code == 200


def test_without_a_database_the_answer_is_503(without_database: FlaskClient) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/models"):
        answer = without_database.get(path)
        assert answer.status_code == 503
        assert 0 < int(answer.headers["Retry-After"]) <= 60
        assert answer.get_json()["error"]["type"] == "server_error"
        assert answer.get_json()["error"]["code"] == "unavailable"
        assert NOBODY not in answer.text


def test_without_a_database_the_process_lives_but_is_not_ready(
    without_database: FlaskClient,
) -> None:
    assert without_database.get("/livez").status_code == 200
    answer = without_database.get("/readyz")
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) <= 60
    assert answer.get_json() == {
        "status": "unavailable",
        "problems": ["The database cannot be reached."],
    }


def test_an_unmigrated_database_is_not_ready(runtime: Runtime, client: FlaskClient) -> None:
    with runtime.transaction() as session:
        deleted = text("DELETE FROM alembic_version RETURNING version_num")
        revision = session.scalars(deleted).one()
    try:
        assert client.get("/readyz").status_code == 503
    finally:  # the next test has the same database
        with runtime.transaction() as session:
            session.execute(text("INSERT INTO alembic_version VALUES (:is)"), {"is": revision})


@pytest.mark.parametrize(
    ("cause", "status", "code"),
    [
        (psycopg.errors.AdminShutdown("restart"), 503, "unavailable"),
        (psycopg.errors.DiskFull("no space"), 507, "storage_full"),
    ],
)
def test_a_request_cut_short_by_an_outage_is_told_to_come_again_though_all_is_well_now(
    api: FlaskClient, monkeypatch: pytest.MonkeyPatch, cause: Exception, status: int, code: str
) -> None:
    def fail(*_: object) -> None:
        raise OperationalError("SELECT secret", None, cause)

    monkeypatch.setattr("runner.services.files.list_files", fail)
    answer = api.get("/v1/files")
    assert answer.status_code == status
    assert 0 < int(answer.headers["Retry-After"]) <= 60
    error = answer.get_json()["error"]
    assert (error["type"], error["code"]) == ("server_error", code)
    assert "secret" not in answer.text
    assert api.get("/readyz").status_code == 200


def test_an_upload_that_would_fill_the_disk_is_refused_before_it_is_read(
    app: Flask,
    api: FlaskClient,
    monkeypatch: pytest.MonkeyPatch,
    form: Callable[..., dict[str, Any]],
) -> None:
    small = ("purpose", "batch"), ("file", "{}", "a.jsonl")
    large = ("purpose", "batch"), ("file", "x" * 3_000_000, "b.jsonl")
    monkeypatch.setattr("runner.runtime.free_room", lambda _: 5_000_000)
    assert api.post("/v1/files", **form(*large)).status_code == 200  # another host's disk
    monkeypatch.setattr(app, "runtime", replace(app.runtime, keeps_data=True))
    assert api.post("/v1/files", **form(*small)).status_code == 200
    refused = api.post("/v1/files", **form(*large))
    assert refused.status_code == 507
    assert refused.get_json()["error"]["code"] == "storage_full"
    assert int(refused.headers["Retry-After"]) > 0


def test_a_create_does_not_wait_for_a_broker_that_is_down(
    settings: Settings, api_key: str, form: Callable[..., dict[str, Any]]
) -> None:
    """Shown by the promptest of a few: the machine itself may stand still during one or two."""
    assert min(_seconds_of_a_create(settings, api_key, form) for _ in range(3)) < 2


def _seconds_of_a_create(
    settings: Settings, api_key: str, form: Callable[..., dict[str, Any]]
) -> float:
    parts = (("purpose", "batch"), ("file", "{}", "a.jsonl"))
    with without_broker(settings, api_key) as client:
        body = {
            "input_file_id": client.post("/v1/files", **form(*parts)).get_json()["id"],
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        begun = time.monotonic()
        answer = client.post("/v1/batches", json=body)
        seconds = time.monotonic() - begun
        assert answer.status_code == 200
        assert client.get(f"/v1/batches/{answer.get_json()['id']}").status_code == 200
    return seconds


def test_an_application_builds_itself_from_the_environment(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", str(settings.database_url))
    monkeypatch.setenv("BROKER_URL", str(settings.broker_url))
    monkeypatch.setenv("TOKENMILL_DATA_DIR", str(settings.data_dir))
    app = create_app()
    assert app.test_client().get("/readyz").status_code == 200
    app.runtime.close()
