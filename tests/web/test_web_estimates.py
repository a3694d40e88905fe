"""Estimates on the wire: of a file without a batch, and on every batch."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select
from visitor import Visitor, assert_harmless
from wire_lines import chat

from runner.db.models import File, Job, JobEstimate
from runner.runtime import Runtime
from runner.services.counting import run_count
from runner.services.file_estimates import FileEstimator, Question
from runner.services.projects import ensure_project

LINES = "application/x-ndjson"

Upload = Callable[..., dict[str, Any]]


def lines(model: str, count: int = 20) -> bytes:
    body = {"model": model, "max_tokens": 5}
    return b"".join(chat(f"line-{n}", **body) + b"\n" for n in range(count))


def sent(api: FlaskClient, data: bytes, **query: str) -> Any:  # noqa: ANN401
    return api.post("/api/estimate", data=data, content_type=LINES, query_string=query)


def test_a_file_that_is_sent_is_counted_and_forgotten(
    api: FlaskClient, model: str, runtime: Runtime
) -> None:
    told = sent(api, lines(model)).get_json()
    assert (told["model"], told["endpoint"]) == (model, "/v1/chat/completions")
    assert (told["lines_counted"], told["estimate"]["lines"]) == (20, 20)
    assert told["estimate"]["is_exact"]
    assert told["estimate"]["output_tokens_most"] == 100
    assert told["estimate"]["basis"] == "max_tokens"
    assert float(told["estimate"]["billed"]["likely"]) > 0
    with runtime.sessions() as session:
        for table in (File, Job, JobEstimate):
            assert session.scalar(select(func.count()).select_from(table)) == 0


def test_an_uploaded_file_is_estimated_by_its_id(
    api: FlaskClient, model: str, upload: Upload
) -> None:
    file = upload(lines(model))
    told = api.post("/api/estimate", json={"input_file_id": file["id"]}).get_json()
    assert told["estimate"] == {**sent(api, lines(model)).get_json()["estimate"]}


def test_defaults_lie_under_the_lines_as_in_a_batch(
    api: FlaskClient, model: str, upload: Upload
) -> None:
    file = upload(lines(model))
    shared = [{"role": "system", "content": "four more small words"}]
    body = {"input_file_id": file["id"], "defaults": {"messages": shared}}
    told = api.post("/api/estimate", json=body).get_json()
    plain = sent(api, lines(model)).get_json()
    more = told["estimate"]["input_tokens"] - plain["estimate"]["input_tokens"]
    assert more == 20 * 4  # the stub counts words


def test_faults_are_named_and_the_good_lines_counted(api: FlaskClient, model: str) -> None:
    data = lines(model, 3) + b"\n".join([b"{}", chat("line-1"), chat("odd", n=0)])
    told = sent(api, data).get_json()
    assert told["fault_count"] == 2
    assert [fault["line"] for fault in told["faults"]] == [4, 5]
    assert told["refused_lines"] == 1


@pytest.mark.parametrize(
    ("data", "query", "code"),
    [
        (b"", {}, "empty_file"),
        (b"\n\n", {}, "empty_file"),
        (b"{}\n", {}, "invalid_request"),
        (b'{"custom_id":"a"}\n', {"endpoint": "/v1/moderations"}, "invalid_request"),
    ],
)
def test_what_cannot_be_estimated_is_refused_with_the_reason(
    api: FlaskClient, data: bytes, query: dict[str, str], code: str
) -> None:
    answer = sent(api, data, **query)
    assert (answer.status_code, answer.get_json()["code"]) == (400, code)


def test_a_file_that_is_too_large_is_refused(api: FlaskClient, model: str) -> None:
    answer = sent(api, lines(model, 20_000))
    assert (answer.status_code, answer.get_json()["code"]) == (413, "file_too_large")


def test_a_file_of_another_project_is_not_found(
    api: FlaskClient, other: FlaskClient, model: str, upload: Upload
) -> None:
    file = upload(lines(model))
    answer = other.post("/api/estimate", json={"input_file_id": file["id"]})
    assert answer.status_code == 404


def test_when_the_time_is_over_bytes_stand_for_the_rest(runtime: Runtime, model: str) -> None:
    estimator = FileEstimator(runtime.sessions, runtime.settings, runtime.counters.open)
    data = [lines(model, 5000)]
    with runtime.transaction() as session:
        project = ensure_project(session, "one")
    exact = estimator.sent(data, Question(project))
    hasty = estimator.sent(data, Question(project, patience_seconds=0))
    assert exact.estimate.is_exact
    assert not hasty.estimate.is_exact
    assert hasty.counted < exact.counted == hasty.estimate.lines == 5000
    assert hasty.estimate.input_tokens == pytest.approx(exact.estimate.input_tokens, rel=0.01)
    assert hasty.estimate.output_most == exact.estimate.output_most


def test_a_batch_shows_its_estimate_and_then_what_it_took(
    api: FlaskClient,
    model: str,
    run_batch: Callable[..., dict[str, Any]],
) -> None:
    batch = run_batch(lines(model))
    told = batch["estimate"]
    assert told["given"]["lines"] == told["actual"]["lines"] == 20
    assert told["actual"]["billed"] == batch["cost"]["billed"]
    assert told["actual"]["input_tokens"] == batch["usage"]["input_tokens"]
    assert told["newest"] is None
    assert api.get("/v1/batches").get_json()["data"][0]["estimate"] == told


def test_a_batch_that_was_counted_shows_exact_figures(
    api: FlaskClient,
    model: str,
    upload: Upload,
    make_batch: Callable[..., dict[str, Any]],
    ingest: Callable[[str], None],
    runtime: Runtime,
) -> None:
    batch = make_batch(input_file_id=upload(lines(model))["id"])
    assert batch["estimate"] is None
    ingest(batch["id"])
    with runtime.sessions() as session:
        job_id = session.scalars(select(Job.id)).one()
    run_count(runtime.sessions, runtime.settings, runtime.counters.open, job_id)
    told = api.get(f"/v1/batches/{batch['id']}").get_json()["estimate"]
    assert told["is_counted"]
    assert told["given"]["is_exact"]
    assert told["given"]["input_tokens"] == told["given"]["input_tokens_most"]


def test_the_page_tells_what_is_expected_and_then_what_it_took(
    model: str,
    visitor: Visitor,
    runtime: Runtime,
    upload: Upload,
    make_batch: Callable[..., dict[str, Any]],
    ingest: Callable[[str], None],
) -> None:
    batch = make_batch(input_file_id=upload(lines(model))["id"])
    path = f"/jobs/{batch['id']}"
    assert "Estimate" not in visitor.get(path).text
    ingest(batch["id"])
    guessed = visitor.get(path).text
    assert "guessed from their bytes" in guessed
    assert "no history yet" in guessed
    with runtime.sessions() as session:
        job_id = session.scalars(select(Job.id)).one()
    run_count(runtime.sessions, runtime.settings, runtime.counters.open, job_id)
    exact = visitor.get(path).text
    assert "exact" in exact
    assert "counted with the model’s own tokenizer" in exact
    assert "end is not known" in exact
    assert_harmless(exact)


def test_the_page_of_a_job_that_ended_sets_both_side_by_side(
    model: str, visitor: Visitor, run_batch: Callable[..., dict[str, Any]]
) -> None:
    batch = run_batch(lines(model))
    page = visitor.get(f"/jobs/{batch['id']}").text
    assert "Estimate and actual" in page
    assert f"<b>{batch['usage']['output_tokens']}</b>" in page
