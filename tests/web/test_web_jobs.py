"""``/api/jobs`` and the files of a job that has ended, on rows as the workers write them."""

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from contract import Contract
from flask.testing import FlaskClient
from sqlalchemy import func, insert, select, update
from sqlalchemy.orm import Session
from visitor import Visitor
from wire_lines import chat

from runner.db.models import File, Job, JobModel, Model, Price, Result, Shard, Usage, WorkItem
from runner.domain.answers import refusal_line, success_line
from runner.domain.ids import FILE_PREFIX, JOB_PREFIX, decode, encode, item_id, new_uuid
from runner.runtime import Runtime
from runner.services.contents import index_view
from runner.services.models import NewModel, PriceList, register_model

Make = Callable[..., dict[str, Any]]
RunBatch = Callable[..., dict[str, Any]]

LINES = 3000
FAILED = {7, 2048}
UNFINISHED = {3, 2999}


def _name(idx: int) -> str:
    return f"line-{idx}-\u00e9"


def _result(job_id: UUID, idx: int) -> dict[str, Any]:
    name, line_id = _name(idx), item_id(job_id, idx)
    error = {"message": "Too long.", "type": "invalid_request_error", "param": None, "code": "x"}
    line = (
        refusal_line(line_id, name, 400, error)
        if idx in FAILED
        else success_line(line_id, name, b'{"n":%d}' % idx)
    )
    return {"job_id": job_id, "idx": idx, "failed": idx in FAILED, "epoch": 1, "line": line}


def _add_lines(session: Session, job_id: UUID) -> None:
    """A job whose lines have answers, errors or nothing yet."""
    job = session.get_one(Job, job_id)
    model_id = session.scalars(select(Model.id)).one()
    price_id = session.scalars(select(Price.id)).one()
    place = {"job_id": job_id, "byte_offset": 0, "byte_length": 1}
    items = [{**place, "idx": idx, "custom_id": _name(idx)} for idx in range(LINES)]
    results = [_result(job_id, idx) for idx in range(LINES) if idx not in UNFINISHED]
    usage = {
        "job_id": job_id,
        "project_id": job.project_id,
        "model_id": model_id,
        "price_id": price_id,
        "worker_id": new_uuid(),
        "attempt": 1,
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "output_tokens": 2,
        "queue_us": 1500,
        "prefill_us": 10,
        "decode_us": 10,
        "total_us": 50_000,
        "device_us": 1000,
        "preemptions": 1,
        "recomputed_tokens": 3,
        "billed_nano": 7,
        "run_cost_nano": 1,
    }
    used = [row["idx"] for row in results if not row["failed"]]
    session.execute(insert(WorkItem), items)
    session.execute(insert(Result), results)
    session.execute(
        insert(Usage), [{**usage, "idx": idx, "first_token_us": 20_000 + idx} for idx in used]
    )
    succeeded = LINES - len(FAILED) - len(UNFINISHED)
    session.add(
        Shard(
            job_id=job_id,
            shard_no=0,
            model_id=model_id,
            price_id=price_id,
            idx=list(range(LINES)),
            state="dropped",
            succeeded=succeeded,
            failed=len(FAILED),
            prompt_tokens=10 * succeeded,
            cached_tokens=4 * succeeded,
            output_tokens=2 * succeeded,
            billed_nano=7 * succeeded,
            run_cost_nano=succeeded,
        )
    )
    running = {
        "state": "in_progress",
        "in_progress_at": func.now(),
        "total_items": LINES,
        "model_id": model_id,
    }
    session.execute(update(Job).where(Job.id == job_id).values(running))
    session.add(
        JobModel(job_id=job_id, model_id=model_id, price_id=price_id, lines=LINES, shards=1)
    )


def _end(session: Session, job_id: UUID) -> None:
    """Cancel a job that has lines, as closing does."""
    job = session.get_one(Job, job_id)
    sizes = {}
    for view, file_id in (("output", job.output_file_id), ("error", job.error_file_id)):
        file = File(
            id=file_id,
            project_id=job.project_id,
            purpose="batch_output",
            filename=f"{encode(JOB_PREFIX, job_id)}_{view}.jsonl",
            size=0,
            job_id=job_id,
            view=view,
        )
        session.add(file)
        session.flush()
        sizes[view] = index_view(session, job_id, view, file_id, "cancelled")
        file.size = sizes[view].bytes
    job.state, job.cancelled_at, job.cancelling_at = "cancelled", func.now(), func.now()
    job.output_lines, job.error_lines = sizes["output"].lines, sizes["error"].lines


@pytest.fixture
def running(make_batch: Make, runtime: Runtime, model: str) -> str:
    """The id of a batch that has run most of its lines."""
    batch = make_batch()
    with runtime.transaction() as session:
        _add_lines(session, _uuid(batch["id"]))
    return batch["id"]


@pytest.fixture
def ended(running: str, runtime: Runtime) -> str:
    """The id of a batch that was cancelled after most of its lines."""
    with runtime.transaction() as session:
        _end(session, _uuid(running))
    return running


def _uuid(batch_id: str) -> UUID:
    job_id = decode(JOB_PREFIX, batch_id)
    assert job_id is not None
    return job_id


def _indexes(data: bytes) -> list[int]:
    return [int(json.loads(line)["custom_id"].split("-")[1]) for line in data.splitlines()]


def test_a_running_job_shows_its_lines_so_far(api: FlaskClient, running: str) -> None:
    batch = api.get(f"/v1/batches/{running}").get_json()
    assert batch["status"] == "in_progress"
    assert batch["model"] == "org/tiny"
    assert batch["output_file_id"] is None
    assert batch["request_counts"] == {"total": LINES, "completed": 2996, "failed": 2}
    assert batch["usage"]["total_tokens"] == 12 * 2996
    assert batch["cost"] == {"currency": "USD", "billed": "0.000020972", "run": "0.000002996"}
    output = api.get(f"/api/jobs/{running}/output", headers={"Range": "bytes=0-1"})
    assert output.status_code == 200
    assert output.headers["Content-Type"] == "application/x-ndjson"
    assert output.headers["Content-Disposition"].startswith("attachment")
    assert "Content-Length" not in output.headers
    expected = [idx for idx in range(LINES) if idx not in FAILED | UNFINISHED]
    assert _indexes(output.data) == expected
    assert _indexes(api.get(f"/api/jobs/{running}/errors").data) == sorted(FAILED)


def test_the_report_adds_up(api: FlaskClient, running: str) -> None:
    report = api.get(f"/api/jobs/{running}/report").get_json()
    assert report["job_id"] == running
    assert report["lines"] == {"total": LINES, "succeeded": 2996, "failed": 2, "billed": 2996}
    assert report["usage"]["input_tokens_details"] == {"cached_tokens": 4 * 2996}
    assert report["cost"] == {
        "currency": "USD",
        "billed": "0.000020972",
        "billed_nano": 20_972,
        "run": "0.000002996",
        "run_nano": 2_996,
        "margin": "0.000017976",
        "margin_nano": 17_976,
    }
    assert report["latency_ms"]["queue"] == {"p50": 1.5, "p90": 1.5, "p99": 1.5}
    assert report["latency_ms"]["first_token"]["p50"] == pytest.approx(21.5, abs=0.01)
    assert report["device_seconds"] == pytest.approx(2.996)
    assert report["preemptions"] == 2996
    assert report["recomputed_tokens"] == 3 * 2996


def test_the_report_tells_the_lane_and_why_it_is_slow(
    api: FlaskClient,
    visitor: Visitor,
    runtime: Runtime,
    run_batch: RunBatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = "stub:?slow_because=a+test+%3Cwants+it%3E"
    with runtime.transaction() as session:
        new = NewModel(name="org/slow", path=path, context_length=1024, manifest={})
        register_model(session, new, PriceList())
    batch = run_batch(chat("a", model="org/slow") + b"\n" + chat("b", model="org/slow"))
    assert batch["request_counts"]["completed"] == 2, batch
    lanes = api.get(f"/api/jobs/{batch['id']}/report").get_json()["lanes"]
    assert lanes == [{"name": "stub", "reason": "a test <wants it>", "lines": 2}]
    page = " ".join(visitor.get(f"/jobs/{batch['id']}").text.split())
    assert "2 lines in the stub lane, which is slower: a test &lt;wants it&gt;." in page
    assert "slower stub lane: a test <wants it>" in caplog.text


def test_an_ended_job_has_files_of_exact_length(api: FlaskClient, ended: str) -> None:
    batch = api.get(f"/v1/batches/{ended}").get_json()
    counts = batch["request_counts"]
    assert counts["completed"] + counts["failed"] == counts["total"] == LINES
    for view, name, expected in (
        ("output", "output_file_id", set(range(LINES)) - FAILED - UNFINISHED),
        ("errors", "error_file_id", FAILED | UNFINISHED),
    ):
        file = api.get(f"/v1/files/{batch[name]}").get_json()
        assert file["purpose"] == "batch_output"
        assert "expires_at" not in file
        content = api.get(f"/v1/files/{file['id']}/content")
        assert _indexes(content.data) == sorted(expected)
        assert file["bytes"] == len(content.data) == int(content.headers["Content-Length"])
        assert api.get(f"/api/jobs/{ended}/{view}").data == content.data


def test_ranges_of_a_view_equal_slices(api: FlaskClient, ended: str) -> None:
    for name in ("output_file_id", "error_file_id"):
        file_id = api.get(f"/v1/batches/{ended}").get_json()[name]
        path = f"/v1/files/{file_id}/content"
        whole = api.get(path).data
        for start in (0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            for size in (1, 500, 100_000):
                headers = {"Range": f"bytes={start}-{start + size - 1}"}
                answer = api.get(path, headers=headers)
                assert answer.status_code == 206
                assert answer.data == whole[start : start + size]


def test_an_output_cannot_be_an_input(api: FlaskClient, ended: str) -> None:
    body = {
        "input_file_id": api.get(f"/v1/batches/{ended}").get_json()["output_file_id"],
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    answer = api.post("/v1/batches", json=body)
    assert answer.status_code == 400
    assert answer.get_json()["error"]["param"] == "input_file_id"


def test_an_output_that_has_expired_is_gone_and_its_figures_stay(
    api: FlaskClient, visitor: Visitor, runtime: Runtime, ended: str
) -> None:
    file_id = api.get(f"/v1/batches/{ended}").get_json()["output_file_id"]
    with runtime.transaction() as session:
        session.execute(update(File).where(File.view == "output").values(expires_at=func.now()))
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content"):
        answer = api.get(path)
        assert answer.status_code == 404
        assert answer.get_json()["error"]["message"].startswith("The output file expired on 20")
    for path in (f"/api/jobs/{ended}/output", f"/api/jobs/{ended}/merged/output"):
        answer = api.get(path)
        assert (answer.status_code, answer.get_json()["code"]) == (410, "gone")
        assert answer.get_json()["detail"].startswith("The output file expired on 20")
    assert api.get(f"/api/jobs/{ended}/errors").status_code == 200
    batch = api.get(f"/v1/batches/{ended}").get_json()
    assert (batch["output_file_id"], batch["request_counts"]["completed"]) == (file_id, 2996)
    page = visitor.get(f"/jobs/{ended}").text
    assert "The output file expired on 20" in page
    assert "Save output" not in page
    assert "Save errors" in page


def test_errors_of_our_own_api_are_problems(api: FlaskClient) -> None:
    answer = api.get("/api/jobs/nonsense/report")
    assert answer.status_code == 404
    assert answer.headers["Content-Type"] == "application/problem+json"
    problem = answer.get_json()
    assert problem["request_id"] == answer.headers["x-request-id"]
    del problem["request_id"]
    assert problem == {
        "type": "about:blank",
        "title": "Not Found",
        "status": 404,
        "detail": "No such batch in this project.",
        "code": "not_found",
        "param": "job_id",
    }


def test_a_file_of_an_id_from_nowhere_is_not_found(api: FlaskClient) -> None:
    answer = api.get(f"/v1/files/{encode(FILE_PREFIX, new_uuid())}/content")
    assert answer.status_code == 404


def test_a_paused_job_stays_in_progress_for_the_contract(api: FlaskClient, running: str) -> None:
    for _ in range(2):
        paused = api.post(f"/api/jobs/{running}/pause")
        assert paused.status_code == 200
        assert (paused.get_json()["status"], paused.get_json()["phase"]) == (
            "in_progress",
            "paused",
        )
    assert "resumed" in paused.get_json()["phase_reason"]
    assert api.get(f"/v1/batches/{running}").get_json()["phase"] == "paused"
    for _ in range(2):
        assert api.post(f"/api/jobs/{running}/resume").get_json()["phase"] == "in_progress"


def test_a_job_that_has_ended_cannot_be_paused(api: FlaskClient, ended: str) -> None:
    for deed in ("pause", "resume"):
        answer = api.post(f"/api/jobs/{ended}/{deed}")
        assert (answer.status_code, answer.get_json()["code"]) == (400, "state_conflict")


def test_equal_lines_are_told_of_everywhere(
    api: FlaskClient, visitor: Visitor, run_batch: RunBatch, contracts: list[Contract], model: str
) -> None:
    data = b"\n".join(chat(name, model=model, temperature=0, n=2) for name in "abc")
    batch = run_batch(data, dedupe="project")
    assert (batch["dedupe"], batch["request_counts"]["completed"]) == ("project", 3)
    lines = [
        json.loads(line)
        for line in api.get(f"/api/jobs/{batch['id']}/output").text.split("\n")[:-1]
    ]
    assert [line.get("reused_from") for line in lines] == [None, lines[0]["id"], lines[0]["id"]]
    for line in lines:
        assert contracts[0].faults("OutputLine", line) == []
    again = run_batch(data, dedupe="project")
    assert again["estimate"]["given"]["reused_lines"] == 3
    report = api.get(f"/api/jobs/{again['id']}/report").get_json()
    saved = Decimal(batch["cost"]["billed"]) * 3
    assert report["reused"] == {"lines": 3, "saved": str(saved)}
    assert (again["cost"]["billed"], again["usage"]["total_tokens"]) == ("0.000000000", 0)
    rows = api.get(f"/api/jobs/{again['id']}/usage").get_json()["data"]
    assert [row["reused"] for row in rows] == [True] * 3
    total = api.get("/api/usage").get_json()["total"]
    assert total["reused"]["lines"] == 5
    assert "Reused lines" in api.get("/api/usage?format=focus").text
    assert "3 of the lines reused" in visitor.get(f"/jobs/{again['id']}").text
    assert "Saved by that" in visitor.get("/costs").text
    page = visitor.upload(data, dedupe="job").location
    assert api.get(f"/v1/batches/{page.rpartition('/')[2]}").get_json()["dedupe"] == "job"
    refused = {"input_file_id": batch["input_file_id"], "endpoint": batch["endpoint"]}
    answer = api.post(
        "/v1/batches", json={**refused, "completion_window": "24h", "dedupe": "sometimes"}
    )
    assert (answer.status_code, answer.get_json()["error"]["param"]) == (400, "dedupe")
