"""Budgets and limits over the wire: exact amounts, refusals with figures, who may change what."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, update
from visitor import Visitor, assert_harmless

from runner.db.models import Job
from runner.domain.ids import API_KEY_PREFIX, JOB_PREFIX, decode, encode
from runner.runtime import Runtime
from runner.services import keys

Upload = Callable[..., dict[str, Any]]
RunBatch = Callable[..., dict[str, Any]]

LINES = b"".join(
    b'{"custom_id":"n%d","method":"POST","url":"/v1/chat/completions","body":{"model":"org/tiny",'
    b'"max_tokens":8,"messages":[{"role":"user","content":"Tale %d."}]}}\n' % (n, n)
    for n in range(6)
)


def key_of(runtime: Runtime, project: str) -> str:
    with runtime.transaction() as session:
        (key,) = [key for key in keys.list_keys(session) if key.project == project]
    return encode(API_KEY_PREFIX, key.id)


def create(api: FlaskClient, file_id: str, **fields: object) -> Any:  # noqa: ANN401
    body = {
        "input_file_id": file_id,
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        **fields,
    }
    return api.post("/v1/batches", json=body)


@pytest.mark.parametrize(
    ("given", "shown"),
    [("2.50", "2.500000000"), (3, "3.000000000"), (0.1, "0.100000000"), (1e-9, "0.000000001")],
)
def test_an_amount_is_exact_however_it_is_written(
    api: FlaskClient, upload: Upload, model: str, given: object, shown: str
) -> None:
    answer = create(api, upload(LINES)["id"], max_cost=given, on_budget="pause")
    assert answer.status_code == 200, answer.text
    assert (answer.get_json()["max_cost"], answer.get_json()["on_budget"]) == (shown, "pause")
    assert api.put("/api/budgets", json={"limit": given}).get_json()["limit"] == shown


@pytest.mark.parametrize(
    "given", ["", "-1", "1,5", "1e3", "0.0000000001", 1e400, -2, "9" * 10, "NaN"]
)
def test_what_is_no_amount_is_refused(api: FlaskClient, upload: Upload, given: object) -> None:
    for answer in (
        create(api, upload(LINES)["id"], max_cost=given),
        api.put("/api/budgets", json={"limit": given}),
    ):
        told = answer.get_json()
        told = told.get("error", told)
        assert answer.status_code == 400
        assert told["param"] in ("max_cost", "limit")
        assert "such as 2.50" in told.get("message", told.get("detail"))


def test_a_batch_that_cannot_fit_is_refused_with_the_figures(
    api: FlaskClient, upload: Upload, model: str
) -> None:
    answer = create(api, upload(LINES)["id"], max_cost="0.000000001")
    error = answer.get_json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (
        400,
        "budget_exceeded",
        "max_cost",
    )
    assert "0.000000001; 0.00 spent" in error["message"]
    assert create(api, upload(LINES)["id"], max_cost="0", on_budget="never").status_code == 400


def test_a_batch_runs_within_its_limit_and_says_so(run_batch: RunBatch, model: str) -> None:
    batch = run_batch(LINES, max_cost="1.00")
    assert (batch["status"], batch["request_counts"]["completed"]) == ("completed", 6)
    assert 0 < float(batch["cost"]["billed"]) < 1


def test_budgets_are_set_shown_and_removed(
    api: FlaskClient, other: FlaskClient, run_batch: RunBatch, runtime: Runtime, model: str
) -> None:
    key_id = key_of(runtime, "one")
    first = api.put("/api/budgets", json={"limit": "5.00"}).get_json()
    assert (first["api_key_id"], first["name"], first["spent"]) == (None, None, "0.000000000")
    batch = run_batch(LINES)
    api.put("/api/budgets", json={"limit": "4", "api_key_id": key_id})
    listed = api.get("/api/budgets").get_json()["data"]
    assert [budget["api_key_id"] for budget in listed] == [None, key_id]
    assert {budget["spent"] for budget in listed} == {batch["cost"]["billed"]}
    assert {budget["reserved"] for budget in listed} == {"0.000000000"}
    assert other.get("/api/budgets").get_json()["data"] == []


def test_a_key_with_a_budget_cannot_lift_it(api: FlaskClient, runtime: Runtime, model: str) -> None:
    key_id = key_of(runtime, "one")
    mine = api.put("/api/budgets", json={"limit": "4", "api_key_id": key_id}).get_json()
    for answer in (
        api.put("/api/budgets", json={"limit": "400", "api_key_id": key_id}),
        api.put("/api/budgets", json={"limit": "400"}),
        api.delete(f"/api/budgets/{mine['id']}"),
    ):
        assert (answer.status_code, answer.get_json()["code"]) == (403, "budget_locked")
    assert api.get("/api/budgets").get_json()["data"] == [mine]


def test_a_budget_that_is_removed_is_gone(api: FlaskClient, model: str) -> None:
    budget = api.put("/api/budgets", json={"limit": "4"}).get_json()
    path = f"/api/budgets/{budget['id']}"
    assert api.delete(path).get_json() == {"id": budget["id"], "object": "budget", "deleted": True}
    assert api.delete(path).status_code == 404
    assert api.get("/api/budgets").get_json()["data"] == []


def test_resuming_may_raise_the_limit(api: FlaskClient, upload: Upload, model: str) -> None:
    made = create(api, upload(LINES)["id"], max_cost="0.5").get_json()
    path = f"/api/jobs/{made['id']}"
    api.post(f"{path}/pause")
    assert api.post(f"{path}/resume", json={"max_cost": "x"}).status_code == 400
    assert (
        api.post(f"{path}/resume", json={"max_cost": "7"}).get_json()["max_cost"] == "7.000000000"
    )


def test_a_page_shows_sets_and_removes_budgets(
    visitor: Visitor, run_batch: RunBatch, model: str
) -> None:
    empty = visitor.get("/budgets").text
    assert_harmless(empty)
    assert "No budget yet" in empty
    run_batch(LINES)
    answer = visitor.post("/budgets", limit="4.00", payer="")
    assert (answer.status_code, answer.location) == (303, "/budgets")
    page = visitor.get("/budgets").text
    assert_harmless(page)
    assert "The whole project" in page
    assert "$4.00" in page
    found = re.search(r'action="(/budgets/budget_[0-9a-z]{26}/remove)"', page)
    assert found is not None
    assert visitor.post("/budgets", limit="a lot", payer="").status_code == 400
    assert visitor.post("/budgets", limit="1", payer="key_nonsense").status_code == 404
    assert visitor.post(found[1]).status_code == 303
    assert "No budget yet" in visitor.get("/budgets").text


def test_a_browser_whose_key_has_a_budget_cannot_change_budgets(
    visitor: Visitor, runtime: Runtime
) -> None:
    visitor.post("/budgets", limit="4.00", payer=key_of(runtime, "one"))
    page = visitor.get("/budgets").text
    assert "cannot change budgets" in page
    assert ">Remove<" not in page
    assert visitor.post("/budgets", limit="400", payer="").status_code == 403


def test_a_page_raises_the_limit_of_a_stopped_job(
    api: FlaskClient, visitor: Visitor, upload: Upload, model: str, runtime: Runtime
) -> None:
    made = create(api, upload(LINES)["id"], max_cost="0.000001", on_budget="pause").get_json()
    path = f"/jobs/{made['id']}"
    job_id = decode(JOB_PREFIX, made["id"])
    with runtime.transaction() as session:
        told = {"paused_at": func.now(), "pause_reason": "budget", "pause_needs_nano": 10**6}
        session.execute(update(Job).where(Job.id == job_id).values(told))
    assert 'name="max_cost"' in visitor.get(path).text
    refused = visitor.post(f"{path}/resume", max_cost="0.0005")
    assert refused.status_code == 400
    assert "raise the limit" in refused.text
    assert api.get(f"/v1/batches/{made['id']}").get_json()["max_cost"] == "0.000001000"
    assert visitor.post(f"{path}/resume", max_cost="0.5").status_code == 303
    assert api.get(f"/v1/batches/{made['id']}").get_json()["max_cost"] == "0.500000000"
