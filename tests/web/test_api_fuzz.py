"""Requests made from the document, good ones and broken ones, against the whole application.

No request may end in a 500, and each answer is as the document says. Ids are those of real things
in most requests, so that what lies behind an id is reached, too.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from contract import Contract
from flask import Flask
from flask.testing import FlaskClient
from fuzzing import runs
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from sqlalchemy import func, update
from wire_lines import chat

from runner.db.models import Delivery
from runner.domain.ids import WORKER_PREFIX, encode
from runner.domain.lanes import Lane
from runner.runtime import Runtime
from runner.services.keys import create_key
from runner.services.workers import NewWorker, mark_ready, register_worker

Form = Callable[..., dict[str, Any]]
Things = dict[str, list[str]]

SOUND = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# What a good request may still be refused for: what it names is not there, over, or too large.
MOSTLY = st.sampled_from((True, True, True, False))
UNBREAKABLE = {"/livez", "/readyz", "/metrics", "/openapi.json"}  # they read nothing
EXCUSED = {
    *("input_file_id", "part_ids", "md5", "bytes", "after"),
    *("file", "lines", "format", "input_tag", "input_path", "output_path", "model", "api_key_id"),
    *("file_id", "batch_id", "job_id", "upload_id", "id", "model", "name"),
    *("budget_id", "schedule_id", "webhook_id", "delivery_id", "api_key_id"),
    # Texts with a grammar that no schema tells, and what must agree with something else.
    *("run_hours", "start_after", "completion_window", "cron", "zone", "timezone", "url", "events"),
    *(
        "lines",
        "format",
        "limit",
        "max_cost",
        "group_by",
        "from",
        "to",
        "schedule",
        "path",
        "tag",
        "tags",
    ),
}


SCHEDULE = {"name": "nightly", "cron": "30 2 * * *", "endpoint": "/v1/chat/completions"}


@pytest.fixture
def things(
    api: FlaskClient,
    form: Form,
    run_batch: Callable[..., dict[str, Any]],
    model: str,
    runtime: Runtime,
) -> Things:
    """Ids of real things, by the parameters that name them; some are over, some under way."""
    ended = run_batch(b"\n".join([chat("a"), chat("b", n=0)]), on_invalid="skip")
    files = [ended["input_file_id"], ended["output_file_id"], ended["error_file_id"]]
    more = api.post("/v1/files", **form(("purpose", "batch"), ("file", chat("c"), "c.jsonl")))
    files.append(more.get_json()["id"])
    new = {"input_file_id": files[-1], "endpoint": "/v1/chat/completions"}
    open_batches = [
        api.post("/v1/batches", json={**new, "completion_window": "24h"}).get_json()["id"]
        for _ in range(3)
    ]
    upload = {"bytes": 2, "filename": "a", "mime_type": "text/jsonl", "purpose": "batch"}
    uploads = [api.post("/v1/uploads", json=upload).get_json()["id"] for _ in range(3)]
    parts = [
        api.post(f"/v1/uploads/{upload_id}/parts", **form(("data", b"{}", "a"))).get_json()["id"]
        for upload_id in uploads
    ]
    batches = [*open_batches, ended["id"]]  # the first is tried most
    budget = api.put("/api/budgets", json={"limit": 100}).get_json()
    schedule = api.post("/api/schedules", json=SCHEDULE | {"input_file_id": files[-1]})
    webhook = api.post("/api/webhooks", json={"url": "https://example.org/hooks"}).get_json()
    delivery = api.post(f"/api/webhooks/{webhook['id']}/test").get_json()
    with runtime.transaction() as session:  # one that is still being tried can't be replayed
        session.execute(update(Delivery).values(state="failed", ended_at=func.now()))
        worker_id = register_worker(session, NewWorker("engine", "house", 1))
        mark_ready(session, worker_id, "a stub", 8, Lane("stub"))
        operator = create_key(session, "one", is_operator=True)[1]
    return {
        "file_id": files,
        "batch_id": batches,
        "job_id": batches,
        "upload_id": uploads,
        "part_id": parts,
        "budget_id": [budget["id"]],
        "schedule_id": [schedule.get_json()["id"]],
        "webhook_id": [webhook["id"]],
        "delivery_id": [delivery["id"]],
        "worker_id": [encode(WORKER_PREFIX, worker_id)],
        "name": [model],
        "key": [operator],
    }


@pytest.mark.slow
def test_no_request_gets_an_answer_that_the_document_does_not_know(
    app: Flask, contracts: list[Contract], things: Things
) -> None:
    for operation in _operations(app):
        good, broken = (_search(operation, mode, things, contracts[0]) for mode in GenerationMode)
        assert good[200] + good[206], f"{operation.label} was never reached"
        assert sum(broken.values()) > 3 or operation.path in UNBREAKABLE, operation.label


def _operations(app: Flask) -> Iterator[APIOperation]:
    schema = schemathesis.openapi.from_wsgi("/openapi.json", app)
    found = [each.ok() for each in schema.get_all_operations()]
    yield from sorted(found, key=_ends_things)  # they come last


def _ends_things(operation: APIOperation) -> bool:
    return operation.method.upper() == "DELETE" or operation.path.endswith("/cancel")


def _search(
    operation: APIOperation, mode: GenerationMode, things: Things, contract: Contract
) -> Counter[int]:
    """Call one operation with good or with broken requests; returns the statuses it answered."""
    seen: Counter[int] = Counter()
    headers = {"Authorization": f"Bearer {things['key'][0]}"}

    @runs(5)
    @given(operation.as_strategy(generation_mode=mode), st.data())
    def search(case: Case, data: st.DataObject) -> None:
        _make_real(case, mode, things, data)
        response = case.call(headers=headers)
        case.validate_response(response, checks=SOUND, headers=headers)
        seen[response.status_code] += 1
        if mode is GenerationMode.POSITIVE:
            assert _is_excused(response), response.text
        elif case.media_type == "application/json" and not _fits(case, contract):
            assert response.status_code >= 400, (case.body, response.text)

    try:
        search()
    except Unsatisfiable:  # nothing about this operation can be wrong
        assert mode is GenerationMode.NEGATIVE
    return seen


def _fits(case: Case, contract: Contract) -> bool:
    """Whether the body that is sent is one that the document allows, as far as it is JSON."""
    if not isinstance(case.body, dict | list | str | int | float | None):
        return True
    operation = contract.document["paths"][case.operation.path][case.method.lower()]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    return not contract.faults(name.rpartition("/")[2], case.body)


def _is_excused(response: Response) -> bool:
    """Whether a good request may get this answer: what it names may not be there, or be over."""
    if response.status_code < 400 or response.status_code == 416:
        return True
    told = response.json()
    fault = told.get("error", told)
    return fault["param"] in EXCUSED or fault["code"] in ("state_conflict", "not_found")


def _make_real(case: Case, mode: GenerationMode, things: Things, data: st.DataObject) -> None:
    """Put ids of real things into good requests, and into most broken ones."""
    for name in list(case.path_parameters or ()):
        if mode is GenerationMode.POSITIVE or data.draw(MOSTLY):
            case.path_parameters[name] = data.draw(st.sampled_from(things[name]))
    if not isinstance(case.body, dict) or not data.draw(MOSTLY):
        return
    if "cron" in case.body and case.operation.method.upper() == "POST":
        name = f"nightly {data.draw(st.integers(0, 10**9))}"
        case.body = SCHEDULE | {"name": name, "input_file_id": things["file_id"][0]}
    if "url" in case.body:
        case.body = {"url": "https://example.org/hooks"}
    if "run_hours" in case.body:  # no schema tells which zones there are
        case.body["run_hours"] = "22:00-06:00 Europe/Berlin"
    if "start_after" in case.body:
        case.body["start_after"] = 0
    if "input_file_id" in case.body:
        case.body["input_file_id"] = data.draw(st.sampled_from(things["file_id"]))
    if "part_ids" in case.body:
        case.body["part_ids"] = [data.draw(st.sampled_from(things["part_id"]))]
