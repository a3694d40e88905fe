"""Every route against every kind of key; a route that the table lacks fails the test."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from runner.runtime import Runtime
from runner.services import keys

Call = Callable[[tuple[str, str], str | None], TestResponse]

OPEN = {("GET", "/livez"), ("GET", "/readyz")}

# What another project's key gets for what is ours, named by id in the path or in the body.
KEYED = {
    ("POST", "/v1/files"): 200,
    ("GET", "/v1/files"): 200,
    ("GET", "/v1/files/<file_id>"): 404,
    ("GET", "/v1/files/<file_id>/content"): 404,
    ("DELETE", "/v1/files/<file_id>"): 404,
    ("POST", "/v1/batches"): 400,
    ("GET", "/v1/batches"): 200,
    ("GET", "/v1/batches/<batch_id>"): 404,
    ("POST", "/v1/batches/<batch_id>/cancel"): 404,
    ("GET", "/v1/models"): 200,
    ("GET", "/v1/models/<path:name>"): 200,
    ("GET", "/api/jobs/<job_id>/report"): 404,
    ("GET", "/api/jobs/<job_id>/output"): 404,
    ("GET", "/api/jobs/<job_id>/errors"): 404,
}
NAMELESS = [
    "x",
    "file-",
    "file-" + "0" * 26,
    "batch_" + "0" * 26,
    "file-" + "z" * 26,
    "batch_" + "z" * 26,
    "file-\u0665",
    "%00",
    "batch_%00",
    "%ff",
]
SHARED = {"/v1/models", "/v1/models/<path:name>"}  # one registry serves all projects


def _routes(app: Flask) -> set[tuple[str, str]]:
    return {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


@pytest.fixture
def owned(make_batch: Callable[..., dict[str, Any]], model: str) -> dict[str, str]:
    """Ids of things that belong to the first project."""
    batch = make_batch()
    return {
        "file_id": batch["input_file_id"],
        "batch_id": batch["id"],
        "job_id": batch["id"],
        "path:name": model,
    }


@pytest.fixture
def call(client: FlaskClient, owned: dict[str, str], form: Callable[..., dict[str, Any]]) -> Call:
    """Calls a route with our ids filled in."""

    def call(route: tuple[str, str], authorization: str | None) -> TestResponse:
        method, path = route
        for name, value in owned.items():
            path = path.replace(f"<{name}>", value)
        headers = {} if authorization is None else {"Authorization": authorization}
        sent: dict[str, Any] = {}
        if route == ("POST", "/v1/batches"):
            sent["json"] = {
                "input_file_id": owned["file_id"],
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            }
        elif route == ("POST", "/v1/files"):
            sent = form(("purpose", "batch"), ("file", b"{}", "a.jsonl"))
        return client.open(path, method=method, headers=headers, **sent)

    return call


def test_the_table_holds_every_route(app: Flask) -> None:
    assert _routes(app) == OPEN | set(KEYED)


@pytest.mark.parametrize("route", sorted(KEYED))
def test_a_route_needs_a_live_key(route: tuple[str, str], call: Call, runtime: Runtime) -> None:
    with runtime.transaction() as session:
        revoked, secret = keys.create_key(session, "one")
        keys.revoke_key(session, revoked.id)
    wrong = [None, "Bearer", "Bearer ", "Basic b25lOnR3bw==", "Bearer tm-unknown", secret]
    answers = [call(route, authorization) for authorization in [*wrong, f"Bearer {secret}"]]
    for answer in answers:
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        told = answer.get_json()
        assert told.get("error", told)["code"] == "invalid_api_key"
        assert secret not in answer.text
    unknown, ended = answers[4].get_json(), answers[6].get_json()
    for told in (unknown, ended):
        told.pop("request_id", None)
    assert unknown == ended


@pytest.mark.parametrize("route", sorted(KEYED))
def test_another_projects_key_sees_nothing_of_ours(
    route: tuple[str, str], call: Call, other_key: str, api_key: str
) -> None:
    answer = call(route, f"Bearer {other_key}")
    assert answer.status_code == KEYED[route], answer.text
    if route[0] == "GET" and answer.status_code == 200 and route[1] not in SHARED:
        assert answer.get_json()["data"] == []
    assert call(route, f"Bearer {api_key}").status_code == 200


@pytest.mark.parametrize("route", sorted(OPEN))
def test_health_needs_no_key(route: tuple[str, str], client: FlaskClient) -> None:
    answer = client.get(route[1])
    assert answer.status_code == 200
    assert answer.get_json() == {"status": "ok"}


@pytest.mark.parametrize("route", sorted(route for route in KEYED if "<" in route[1]))
def test_an_id_that_names_nothing_is_not_found(route: tuple[str, str], api: FlaskClient) -> None:
    before, _, after = route[1].partition("<")
    for name in NAMELESS:
        answer = api.open(before + name + after.partition(">")[2], method=route[0])
        assert answer.status_code == 404, name
        told = answer.get_json()
        assert told.get("error", told)["code"] in ("not_found", "model_not_found")
