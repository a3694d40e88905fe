"""Every route against every kind of key; a route that the table lacks fails the test."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, update
from visitor import Visitor
from werkzeug.test import TestResponse
from wire_lines import chat

from runner.db.models import Delivery
from runner.domain.ids import API_KEY_PREFIX, WORKER_PREFIX, encode
from runner.runtime import Runtime
from runner.services import keys
from runner.services.workers import NewWorker, register_worker

Call = Callable[[tuple[str, str], str | None], TestResponse]

OPEN = {("GET", "/livez"), ("GET", "/readyz")}
PUBLIC = {
    ("GET", "/static/<path:filename>"),
    ("GET", "/signin"),
    ("POST", "/signin"),
    ("POST", "/signout"),
    ("GET", "/openapi.json"),
    ("GET", "/reference"),
}

# What a browser signed in to another project gets for what is ours.
SIGNED_IN = {
    ("GET", "/"): 200,
    ("GET", "/live"): 200,
    ("POST", "/jobs"): 303,
    ("GET", "/costs"): 200,
    ("GET", "/costs/export"): 200,
    ("GET", "/schedules"): 200,
    ("POST", "/schedules"): 303,
    ("GET", "/schedules/<schedule_id>"): 404,
    ("POST", "/schedules/<schedule_id>/change"): 404,
    ("POST", "/schedules/<schedule_id>/pause"): 404,
    ("POST", "/schedules/<schedule_id>/resume"): 404,
    ("POST", "/schedules/<schedule_id>/run"): 404,
    ("POST", "/schedules/<schedule_id>/delete"): 404,
    ("GET", "/jobs/<job_id>"): 404,
    ("GET", "/jobs/<job_id>/live"): 404,
    ("POST", "/jobs/<job_id>/cancel"): 404,
    ("GET", "/budgets"): 200,
    ("POST", "/budgets"): 400,
    ("POST", "/budgets/<budget_id>/remove"): 404,
    ("POST", "/jobs/<job_id>/pause"): 404,
    ("POST", "/jobs/<job_id>/resume"): 404,
    ("POST", "/jobs/<job_id>/edit"): 404,
    ("POST", "/jobs/<job_id>/retry"): 404,
    ("GET", "/jobs/<job_id>/merged"): 404,
    ("GET", "/webhooks"): 200,
    ("POST", "/webhooks"): 400,
    ("GET", "/webhooks/<webhook_id>"): 404,
    ("POST", "/webhooks/<webhook_id>/<verb>"): 404,
    ("POST", "/webhooks/<webhook_id>/deliveries/<delivery_id>/replay"): 404,
    ("GET", "/jobs/<job_id>/output"): 404,
    ("GET", "/jobs/<job_id>/errors"): 404,
    ("GET", "/workers"): 200,
    ("GET", "/workers/live"): 200,
    ("POST", "/workers/<worker_id>/drain"): 403,
    ("POST", "/workers/<worker_id>/undrain"): 403,
}
LOCAL = {("GET", "/metrics")}  # open to this host only

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
    ("POST", "/v1/uploads"): 200,
    ("POST", "/v1/uploads/<upload_id>/parts"): 404,
    ("POST", "/v1/uploads/<upload_id>/complete"): 404,
    ("POST", "/v1/uploads/<upload_id>/cancel"): 404,
    ("GET", "/v1/models"): 200,
    ("GET", "/v1/models/<path:name>"): 200,
    ("POST", "/api/webhooks"): 200,
    ("GET", "/api/webhooks"): 200,
    ("GET", "/api/webhooks/<webhook_id>"): 404,
    ("DELETE", "/api/webhooks/<webhook_id>"): 404,
    ("POST", "/api/webhooks/<webhook_id>/rotate"): 404,
    ("POST", "/api/webhooks/<webhook_id>/resume"): 404,
    ("POST", "/api/webhooks/<webhook_id>/test"): 404,
    ("GET", "/api/webhooks/<webhook_id>/deliveries"): 404,
    ("POST", "/api/webhooks/<webhook_id>/deliveries/<delivery_id>/replay"): 404,
    ("PATCH", "/api/jobs/<job_id>"): 404,
    ("GET", "/api/usage"): 200,
    ("POST", "/api/estimate"): 200,
    ("GET", "/api/jobs/<job_id>/usage"): 404,
    ("PATCH", "/api/files/<file_id>"): 404,
    ("POST", "/api/schedules"): 400,
    ("GET", "/api/schedules"): 200,
    ("GET", "/api/schedules/<schedule_id>"): 404,
    ("PATCH", "/api/schedules/<schedule_id>"): 404,
    ("DELETE", "/api/schedules/<schedule_id>"): 404,
    ("POST", "/api/schedules/<schedule_id>/pause"): 404,
    ("POST", "/api/schedules/<schedule_id>/resume"): 404,
    ("POST", "/api/schedules/<schedule_id>/run"): 404,
    ("GET", "/api/schedules/<schedule_id>/runs"): 404,
    ("POST", "/api/jobs/<job_id>/retry"): 404,
    ("GET", "/api/jobs/<job_id>/merged/output"): 404,
    ("GET", "/api/jobs/<job_id>/merged/errors"): 404,
    ("GET", "/api/retention"): 200,
    ("GET", "/api/jobs/<job_id>/report"): 404,
    ("GET", "/api/jobs/<job_id>/output"): 404,
    ("GET", "/api/jobs/<job_id>/errors"): 404,
    ("GET", "/api/budgets"): 200,
    ("PUT", "/api/budgets"): 404,
    ("DELETE", "/api/budgets/<budget_id>"): 404,
    ("POST", "/api/jobs/<job_id>/pause"): 404,
    ("POST", "/api/jobs/<job_id>/resume"): 404,
    ("GET", "/api/workers"): 200,
    ("POST", "/api/workers/<worker_id>/drain"): 403,
    ("POST", "/api/workers/<worker_id>/undrain"): 403,
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
    "upload_" + "0" * 26,
    "%ff",
]
WEBHOOK = {"url": "https://example.org/hooks"}
UPLOAD = {"bytes": 2, "filename": "a.jsonl", "mime_type": "text/jsonl", "purpose": "batch"}
SCHEDULE = {"name": "nightly", "cron": "30 2 * * *", "endpoint": "/v1/chat/completions"}
# One registry, one rule, and the same workers for all projects.
SHARED = {"/v1/models", "/v1/models/<path:name>", "/api/retention", "/api/workers"}


def _routes(app: Flask) -> set[tuple[str, str]]:
    return {
        (method, rule.rule)
        for rule in app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
    }


@pytest.fixture
def owned(
    make_batch: Callable[..., dict[str, Any]],
    model: str,
    api: FlaskClient,
    form: Callable[..., dict[str, Any]],
    runtime: Runtime,
) -> dict[str, str]:
    """Ids of things that belong to the first project."""
    batch = make_batch()
    upload = api.post("/v1/uploads", json=UPLOAD).get_json()
    sent = form(("data", b"{}", "upload"))
    timed = SCHEDULE | {"input_file_id": batch["input_file_id"]}
    schedule = api.post("/api/schedules", json=timed).get_json()
    part = api.post(f"/v1/uploads/{upload['id']}/parts", **sent).get_json()
    budget = api.put("/api/budgets", json={"limit": 1}).get_json()
    with runtime.transaction() as session:
        (key,) = [key for key in keys.list_keys(session) if key.project == "one"]
    webhook = api.post("/api/webhooks", json=WEBHOOK).get_json()
    delivery = api.post(f"/api/webhooks/{webhook['id']}/test").get_json()
    with runtime.transaction() as session:  # one that is still being tried can't be replayed
        session.execute(update(Delivery).values(state="failed", ended_at=func.now()))
        worker_id = register_worker(session, NewWorker("engine", "here", 1))
    return {
        "worker_id": encode(WORKER_PREFIX, worker_id),
        "api_key_id": encode(API_KEY_PREFIX, key.id),
        "budget_id": budget["id"],
        "file_id": batch["input_file_id"],
        "batch_id": batch["id"],
        "job_id": batch["id"],
        "upload_id": upload["id"],
        "part_id": part["id"],
        "schedule_id": schedule["id"],
        "webhook_id": webhook["id"],
        "delivery_id": delivery["id"],
        "verb": "test",
        "path:name": model,
    }


def _bodies(owned: dict[str, str]) -> dict[tuple[str, str], dict[str, Any]]:
    """What requests carry, by route."""
    batch = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    schedule = SCHEDULE | {"name": "other"}
    return {
        ("POST", "/v1/batches"): batch | {"input_file_id": owned["file_id"]},
        ("POST", "/v1/uploads"): UPLOAD,
        ("POST", "/api/webhooks"): WEBHOOK,
        ("PUT", "/api/budgets"): {"limit": "9.50", "api_key_id": owned["api_key_id"]},
        ("POST", "/v1/uploads/<upload_id>/complete"): {"part_ids": [owned["part_id"]]},
        ("PATCH", "/api/jobs/<job_id>"): {"priority": 1},
        ("PATCH", "/api/files/<file_id>"): {"tags": ["a"]},
        ("POST", "/api/schedules"): schedule | {"input_file_id": owned["file_id"]},
        ("PATCH", "/api/schedules/<schedule_id>"): {"priority": 1},
    }


@pytest.fixture
def call(client: FlaskClient, owned: dict[str, str], form: Callable[..., dict[str, Any]]) -> Call:
    """Calls a route with our ids filled in."""

    def call(route: tuple[str, str], authorization: str | None) -> TestResponse:
        method, path = route
        for name, value in owned.items():
            path = path.replace(f"<{name}>", value)
        headers = {} if authorization is None else {"Authorization": authorization}
        body = _bodies(owned).get(route)
        sent: dict[str, Any] = {} if body is None else {"json": body}
        if route == ("POST", "/v1/files"):
            sent = form(("purpose", "batch"), ("file", b"{}", "a.jsonl"))
        elif route == ("POST", "/api/estimate"):
            sent = {"data": chat(), "content_type": "application/x-ndjson"}
        elif route[1].endswith("/parts"):
            sent = form(("data", b"{}", "upload"))
        return client.open(path, method=method, headers=headers, **sent)

    return call


def test_the_table_holds_every_route(app: Flask) -> None:
    assert _routes(app) == OPEN | PUBLIC | LOCAL | set(KEYED) | set(SIGNED_IN)


def test_every_route_needs_a_live_key(call: Call, runtime: Runtime) -> None:
    with runtime.transaction() as session:
        revoked, secret = keys.create_key(session, "one")
        keys.revoke_key(session, revoked.id)
    wrong = [None, "Bearer", "Bearer ", "Basic b25lOnR3bw==", f"Basic {secret}"]
    for route in sorted(KEYED):
        for authorization in [*wrong, "Bearer tm-unknown", f"Bearer {secret}"]:
            answer = call(route, authorization)
            assert answer.status_code == 401, (route, authorization)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            told = answer.get_json()
            assert told.get("error", told)["code"] == "invalid_api_key"
            assert secret not in answer.text


def test_a_revoked_key_looks_like_an_unknown_one(client: FlaskClient, runtime: Runtime) -> None:
    with runtime.transaction() as session:
        revoked, secret = keys.create_key(session, "one")
        keys.revoke_key(session, revoked.id)
    answers = [
        client.get("/v1/files", headers={"Authorization": f"Bearer {text}"}).get_json()
        for text in (secret, "tm-unknown")
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("route", sorted(KEYED))
def test_another_projects_key_sees_nothing_of_ours(
    route: tuple[str, str], call: Call, other_key: str, api_key: str
) -> None:
    answer = call(route, f"Bearer {other_key}")
    assert answer.status_code == KEYED[route], answer.text
    if route[0] == "GET" and answer.status_code == 200 and route[1] not in SHARED:
        assert answer.get_json()["data"] == []
    # A job that has not ended has nothing to retry, and a worker is no project's; all else works.
    own = 400 if route == ("POST", "/api/jobs/<job_id>/retry") else 200
    own = 403 if KEYED[route] == 403 else own
    assert call(route, f"Bearer {api_key}").status_code == own


def test_health_needs_no_key(client: FlaskClient) -> None:
    for _, path in OPEN:
        answer = client.get(path)
        assert (answer.status_code, answer.get_json()) == (200, {"status": "ok"})


def test_an_id_that_names_nothing_is_not_found(api: FlaskClient) -> None:
    for method, path in KEYED:
        before, named, after = path.partition("<")
        for name in NAMELESS if named else ():
            answer = api.open(before + name + after.partition(">")[2], method=method)
            assert answer.status_code == 404, (path, name)
            told = answer.get_json()
            assert told.get("error", told)["code"] in ("not_found", "model_not_found")


def test_every_page_needs_a_session(call: Call, api_key: str) -> None:
    """A key alone opens no page, as a session opens nothing of the API."""
    for route in sorted(SIGNED_IN):
        for authorization in (None, f"Bearer {api_key}"):
            answer = call(route, authorization)
            assert answer.status_code == 303, route
            assert answer.location.partition("?")[0] == "/signin"


def test_a_session_opens_nothing_of_the_api(visitor: Visitor, owned: dict[str, str]) -> None:
    for method, path in sorted(KEYED):
        for name, value in owned.items():
            path = path.replace(f"<{name}>", value)
        assert visitor.client.open(path, method=method).status_code == 401, path


def test_another_projects_browser_sees_nothing_of_ours(
    owned: dict[str, str], visitor: Visitor, other_visitor: Visitor
) -> None:
    for route, status in sorted(SIGNED_IN.items(), key=lambda one: one[0][1].endswith("/delete")):
        answer = _visit(other_visitor, route, owned)
        assert answer.status_code == status, route
        assert owned["job_id"] not in answer.text
        assert owned["schedule_id"] not in answer.text
        allowed = (status,) if status in (400, 403) else (200, 303)
        assert _visit(visitor, route, owned).status_code in allowed, route


def test_an_address_that_names_no_job_is_not_found(visitor: Visitor) -> None:
    token = visitor.token()
    for method, path in SIGNED_IN:
        before, named, after = path.partition("<")
        for name in NAMELESS if named else ():
            where = before + name + after.partition(">")[2]
            answer = visitor.client.open(where, method=method, data={"csrf_token": token})
            assert answer.status_code == 404, where


def _visit(visitor: Visitor, route: tuple[str, str], owned: dict[str, str]) -> TestResponse:
    method, path = route
    if route == ("POST", "/jobs"):
        return visitor.upload(b"{}")
    for name, value in owned.items():
        path = path.replace(f"<{name}>", value)
    if method == "GET":
        return visitor.get(path)
    form = SCHEDULE | {"name": path[-30:], "source": "tag", "input": "a"}
    return visitor.post(path, **form if route[1].startswith("/schedules") else {})
