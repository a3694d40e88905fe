"""``/v1/batches``: every code of a refused create, repeats, pages and the whole object."""

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

from flask.testing import FlaskClient
from sqlalchemy import func, update
from werkzeug.test import TestResponse

from runner.db.models import Job, JobError
from runner.domain.ids import JOB_PREFIX, decode
from runner.runtime import Runtime
from web.api.wire import decimal_text

Make = Callable[..., dict[str, Any]]
ABSENT = object()
WRONG_FIELDS: list[tuple[str, object, str, str]] = [
    ("input_file_id", ABSENT, "missing_required_parameter", "input_file_id"),
    ("endpoint", ABSENT, "missing_required_parameter", "endpoint"),
    ("completion_window", ABSENT, "missing_required_parameter", "completion_window"),
    ("input_file_id", None, "invalid_type", "input_file_id"),
    ("input_file_id", 7, "invalid_type", "input_file_id"),
    ("endpoint", ["/v1/completions"], "invalid_type", "endpoint"),
    ("completion_window", 24, "invalid_type", "completion_window"),
    ("metadata", "text", "invalid_type", "metadata"),
    ("metadata", {"a": 1}, "invalid_type", "metadata"),
    ("metadata", {"a": None}, "invalid_type", "metadata"),
    ("metadata", {"a": {"b": "c"}}, "invalid_type", "metadata"),
    ("output_expires_after", 3600, "invalid_type", "output_expires_after"),
    (
        "output_expires_after",
        {"seconds": 3600},
        "missing_required_parameter",
        "output_expires_after.anchor",
    ),
    (
        "output_expires_after",
        {"anchor": "created_at", "seconds": "3600"},
        "invalid_type",
        "output_expires_after.seconds",
    ),
    (
        "output_expires_after",
        {"anchor": "now", "seconds": 3600},
        "invalid_value",
        "output_expires_after.anchor",
    ),
    (
        "output_expires_after",
        {"anchor": "created_at", "seconds": 10**30},
        "invalid_request",
        "output_expires_after.seconds",
    ),
    ("priority", "high", "invalid_type", "priority"),
    ("priority", True, "invalid_type", "priority"),
    ("priority", 1.5, "invalid_type", "priority"),
    ("priority", 101, "invalid_request", "priority"),
    ("on_invalid", None, "invalid_type", "on_invalid"),
    ("on_invalid", "guess", "invalid_request", "on_invalid"),
    ("max_costs", "1.00", "unknown_parameter", "max_costs"),
    ("endpoint", "/v1/videos", "invalid_request", "endpoint"),
    ("completion_window", "1w", "invalid_request", "completion_window"),
    ("start_after", -1, "invalid_request", "start_after"),
    ("start_after", 10**15, "invalid_request", "start_after"),
    ("start_after", "soon", "invalid_type", "start_after"),
    ("run_hours", "22-06", "invalid_request", "run_hours"),
    ("run_hours", 22, "invalid_type", "run_hours"),
    ("metadata", {"k" * 65: "v"}, "invalid_request", "metadata"),
    ("metadata", {"k": "v" * 513}, "invalid_request", "metadata"),
    ("metadata", {"k": "a\0b"}, "invalid_request", "metadata"),
    ("metadata", {str(n): "v" for n in range(17)}, "invalid_request", "metadata"),
    ("input_file_id", "", "invalid_request", "input_file_id"),
    ("input_file_id", "file-\0", "invalid_request", "input_file_id"),
    ("input_file_id", "file-" + "0" * 26, "invalid_request", "input_file_id"),
]
WRONG_BODIES = [
    (b"", "invalid_json"),
    (b"{", "invalid_json"),
    (b"\xff\xfe", "invalid_json"),
    (b'{"endpoint": NaN}', "missing_required_parameter"),
    (b'{"endpoint": "\\ud800"}', "invalid_json"),
    (b"[" * 100_000, "invalid_json"),
    (b"[]", "invalid_type"),
    (b"null", "invalid_type"),
    (b'"text"', "invalid_type"),
    (b"1", "invalid_type"),
]
WRONG_PAGES = [
    ("limit=101", 400, "integer_above_max_value", "limit"),
    ("limit=0", 400, "integer_below_min_value", "limit"),
    ("limit=ten", 400, "invalid_type", "limit"),
    ("after=%00", 400, "bad_request", None),
    ("after=nonsense", 404, "not_found", "after"),
    ("after=batch_" + "0" * 26, 404, "not_found", "batch_id"),
]


def _error(answer: TestResponse, status: int = 400) -> tuple[str, str | None]:
    assert answer.status_code == status, answer.text
    error = answer.get_json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error["code"], error["param"]


def _uuid(batch: dict[str, Any]) -> UUID:
    job_id = decode(JOB_PREFIX, batch["id"])
    assert job_id is not None
    return job_id


def test_a_new_batch_has_every_field_of_the_contract(api: FlaskClient, upload: Make) -> None:
    body = {
        "input_file_id": upload()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"name": "nightly", "": "\u00e9"},
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
        "priority": -5,
        "run_hours": "22:00-06:00 Europe/Berlin",
        "on_invalid": "skip",
    }
    batch = api.post("/v1/batches", json=body).get_json()
    assert batch["id"].startswith("batch_")
    assert batch["expires_at"] == batch["created_at"] + 86_400
    assert api.get(f"/v1/batches/{batch['id']}").get_json() == batch
    for name in ("id", "created_at", "expires_at", "phase", "phase_reason"):
        del batch[name]
    assert batch == {
        "object": "batch",
        "endpoint": "/v1/chat/completions",
        "model": None,
        "errors": None,
        "input_file_id": body["input_file_id"],
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "in_progress_at": None,
        "finalizing_at": None,
        "completed_at": None,
        "failed_at": None,
        "expired_at": None,
        "cancelling_at": None,
        "cancelled_at": None,
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
        "metadata": {"name": "nightly", "": "\u00e9"},
        "parent_id": None,
        "output_expires_after": body["output_expires_after"],
        "models": [],
        "lines_removed_at": None,
        "priority": -5,
        "tags": [],
        "p99_ms": None,
        "start_after": None,
        "run_hours": "22:00-06:00 Europe/Berlin",
        "queue_position": None,
        "schedule_id": None,
        "estimate": None,
        "defaults": None,
        "max_cost": None,
        "dedupe": "off",
        "on_budget": "refuse",
        "cost": {"currency": "USD", "billed": "0.000000000", "run": "0.000000000"},
    }


def test_a_wrong_create_is_refused_by_name(api: FlaskClient, upload: Make) -> None:
    right = {
        "input_file_id": upload()["id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    for field, value, code, param in WRONG_FIELDS:
        body: dict[str, object] = {**right, field: value}
        if value is ABSENT:
            del body[field]
        assert _error(api.post("/v1/batches", json=body)) == (code, param), (field, value)
    assert api.get("/v1/batches").get_json()["data"] == []


def test_a_body_that_is_no_object_is_refused(api: FlaskClient) -> None:
    for body, code in WRONG_BODIES:
        answer = api.post("/v1/batches", data=body, content_type="application/json")
        assert _error(answer)[0] == code, body[:20]


def test_a_deleted_input_or_an_output_cannot_be_run(
    api: FlaskClient, upload: Make, make_batch: Make
) -> None:
    file_id = upload()["id"]
    api.delete(f"/v1/files/{file_id}")
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    assert _error(api.post("/v1/batches", json=body)) == ("invalid_request", "input_file_id")


def test_an_idempotency_key_makes_one_batch(
    api: FlaskClient, make_batch: Make, upload: Make
) -> None:
    file_id = upload()["id"]
    headers = {"Idempotency-Key": "nightly-1"}
    first = make_batch(headers, input_file_id=file_id)
    assert make_batch(headers, input_file_id=file_id)["id"] == first["id"]
    assert make_batch(input_file_id=file_id)["id"] != first["id"]
    other = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    answer = api.post("/v1/batches", json=other, headers=headers)
    assert _error(answer)[0] == "idempotency_key_reused"
    for key in ("", "k" * 256):
        answer = api.post("/v1/batches", json=other, headers={"Idempotency-Key": key})
        assert _error(answer)[0] == "invalid_idempotency_key"


def test_an_idempotency_key_belongs_to_its_caller(
    make_batch: Make, other: FlaskClient, upload: Make, form: Make
) -> None:
    headers = {"Idempotency-Key": "same"}
    make_batch(headers)
    parts = (("purpose", "batch"), ("file", "{}", "a.jsonl"))
    body = {
        "input_file_id": other.post("/v1/files", **form(*parts)).get_json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
    assert other.post("/v1/batches", json=body, headers=headers).status_code == 200
    assert len(other.get("/v1/batches").get_json()["data"]) == 1


def test_a_retry_of_the_client_makes_no_second_batch(make_batch: Make, upload: Make) -> None:
    file_id = upload()["id"]
    first = make_batch({"x-stainless-retry-count": "0"}, input_file_id=file_id)
    again = make_batch({"x-stainless-retry-count": "1"}, input_file_id=file_id)
    fresh = make_batch({"x-stainless-retry-count": "0"}, input_file_id=file_id)
    other = make_batch({"x-stainless-retry-count": "2"}, input_file_id=file_id, priority=1)
    odd = make_batch({"x-stainless-retry-count": "many"}, input_file_id=file_id)
    assert again["id"] == first["id"]
    assert len({batch["id"] for batch in (first, fresh, other, odd)}) == 4


def test_pages_show_each_batch_once(api: FlaskClient, make_batch: Make, upload: Make) -> None:
    file_id = upload()["id"]
    made = [make_batch(input_file_id=file_id)["id"] for _ in range(60)]
    for query, sizes in (({}, [20, 20, 20]), ({"limit": 50}, [50, 10]), ({"limit": 100}, [60])):
        seen, pages, after, more = [], [], None, True
        while more:
            asked = {**query, **({"after": after} if after else {})}
            page = api.get("/v1/batches", query_string=asked).get_json()
            seen += [batch["id"] for batch in page["data"]]
            pages.append(len(page["data"]))
            after, more = page["last_id"], page["has_more"]
        assert seen == made[::-1]
        assert pages == sizes


def test_a_wrong_page_is_refused(api: FlaskClient) -> None:
    for query, status, code, param in WRONG_PAGES:
        assert _error(api.get(f"/v1/batches?{query}"), status) == (code, param), query


def test_a_poll_of_an_unchanged_batch_is_304(api: FlaskClient, make_batch: Make) -> None:
    path = f"/v1/batches/{make_batch()['id']}"
    first = api.get(path)
    assert first.headers["Cache-Control"] == "private, no-cache"
    again = api.get(path, headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.data) == (304, b"")
    api.post(f"{path}/cancel")
    assert api.get(path, headers={"If-None-Match": first.headers["ETag"]}).status_code == 200


def test_a_cancel_may_be_repeated_but_not_after_the_end(
    api: FlaskClient, make_batch: Make, runtime: Runtime
) -> None:
    batch = make_batch()
    path = f"/v1/batches/{batch['id']}/cancel"
    for _ in range(2):
        answer = api.post(path).get_json()
        assert answer["status"] == "cancelling"
        assert answer["cancelling_at"] >= batch["created_at"]
    with runtime.transaction() as session:
        ended = {"state": "cancelled", "cancelled_at": func.now()}
        session.execute(update(Job).where(Job.id == _uuid(batch)).values(ended))
    assert _error(api.post(path)) == ("state_conflict", "batch_id")
    again = api.post(path, headers={"x-stainless-retry-count": "1"})
    assert (again.status_code, again.get_json()["status"]) == (200, "cancelled")


def test_faults_are_told_up_to_a_hundred(
    api: FlaskClient, make_batch: Make, runtime: Runtime
) -> None:
    batches = {count: make_batch() for count in (1, 100, 1234)}
    for count, batch in batches.items():
        with runtime.transaction() as session:
            for number in range(min(count, 1000)):
                fault = JobError(job_id=_uuid(batch), error_no=number, code="invalid_json_line")
                fault.message, fault.line, fault.param = "No JSON.", number + 1, "body"
                session.add(fault)
            failed = {"state": "failed", "failed_at": func.now(), "error_count": count}
            session.execute(update(Job).where(Job.id == _uuid(batch)).values(failed))
        shown = api.get(f"/v1/batches/{batch['id']}").get_json()
        assert shown["status"] == "failed"
        assert shown["errors"]["object"] == "list"
        faults = shown["errors"]["data"]
        assert faults[0] == {
            "code": "invalid_json_line",
            "line": 1,
            "message": "No JSON.",
            "param": "body",
        }
        assert len([fault for fault in faults if fault["line"]]) == min(count, 100)
        more = [fault for fault in faults if fault["code"] == "more_errors"]
        assert len(more) == (count > 100)
        if more:
            assert faults[-1] == more[0]
            assert "1,134" in more[0]["message"]


def test_money_is_written_to_the_last_digit() -> None:
    amounts = (0, 1, 1_500_000_000, 2**62)
    texts = ["0.000000000", "0.000000001", "1.500000000", "4611686018.427387904"]
    assert [decimal_text(nano) for nano in amounts] == texts


def test_a_large_body_is_refused(api: FlaskClient) -> None:
    body = json.dumps({"endpoint": "x" * 1024**2})
    assert _error(api.post("/v1/batches", data=body), 413)[0] == "request_entity_too_large"
