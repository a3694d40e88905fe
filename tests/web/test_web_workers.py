"""Workers over the API and on their page: what they do now, and draining them."""

from collections.abc import Callable

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select, update
from visitor import Visitor, assert_harmless

from runner.db.models import AuditEntry, Model, Worker
from runner.domain.ids import WORKER_PREFIX, ModelId, encode
from runner.domain.lanes import Lane
from runner.runtime import Runtime
from runner.services import keys
from runner.services.worker_time import WorkerTimes
from runner.services.workers import NewWorker, beat, mark_ready, register_worker

SignIn = Callable[[str], Visitor]


@pytest.fixture
def worker(runtime: Runtime, model: str) -> str:
    """The outer id of a worker that has told its figures."""
    with runtime.transaction() as session:
        model_id = ModelId(session.scalars(select(Model.id).where(Model.name == model)).one())
        worker_id = register_worker(session, NewWorker("engine", "host-<b>1</b>", 4711, model_id))
    with runtime.transaction() as session:
        mark_ready(session, worker_id, "a stub", 64, Lane("padded", "its attention is odd"))
        stats = {"running": 48, "lines_per_s": 2.5, "output_tokens_per_s": 1250.4}
        beat(session, worker_id, WorkerTimes(3_000_000, 2_000_000, 1_000_000), stats)
    return encode(WORKER_PREFIX, worker_id)


@pytest.fixture
def operator(runtime: Runtime) -> str:
    """The secret of an operator's key."""
    with runtime.transaction() as session:
        return keys.create_key(session, "house", is_operator=True)[1]


def test_workers_are_told_with_what_they_do(api: FlaskClient, worker: str, model: str) -> None:
    (told,) = api.get("/api/workers").get_json()["data"]
    times = {name: told.pop(name) for name in ("started_at", "last_seen_at")}
    assert times["last_seen_at"] >= times["started_at"]
    assert told == {
        "id": worker,
        "object": "worker",
        "host": "host-<b>1</b>",
        "pid": 4711,
        "state": "ready",
        "model": model,
        "next_model": None,
        "lane": "padded",
        "lane_reason": "its attention is odd",
        "rows": 64,
        "rows_in_use": 48,
        "lines_in_hand": 0,
        "lines_per_second": 2.5,
        "output_tokens_per_second": 1250.4,
        "seconds": {"busy": 3.0, "idle": 2.0, "load": 1.0},
        "drained_at": None,
    }


def test_an_operators_key_drains_a_worker_and_others_may_not(
    app: Flask, api: FlaskClient, worker: str, operator: str, runtime: Runtime
) -> None:
    refused = api.post(f"/api/workers/{worker}/drain")
    told = refused.get_json()
    assert (refused.status_code, told.get("error", told)["code"]) == (403, "operator_only")
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {operator}"
    told = client.post(f"/api/workers/{worker}/drain").get_json()
    assert (told["state"], told["drained_at"] is None) == ("drained", False)
    assert client.post(f"/api/workers/{worker}/undrain").get_json()["state"] == "ready"
    with runtime.transaction() as session:
        told = select(AuditEntry.detail).where(AuditEntry.action == "worker.drain")
        assert session.scalars(told).one()["api_key_id"]
        session.execute(update(Worker).values(state="dead", ended_at=Worker.started_at))
    assert client.post(f"/api/workers/{worker}/drain").status_code == 404
    assert client.get("/api/workers").get_json()["data"] == []


def test_the_page_shows_workers_and_its_button_is_an_operators(
    visitor: Visitor, sign_in: SignIn, worker: str, operator: str
) -> None:
    page = visitor.get("/workers").text
    assert_harmless(page)
    for words in (
        "org/tiny",
        "48 of 64",
        "2.5 lines, 1,250 tokens",
        "padded lane",
        "keys create --operator",
    ):
        assert words in page, words
    assert "/drain" not in page
    assert visitor.post(f"/workers/{worker}/drain").status_code == 403
    house = sign_in(operator)
    assert f"/workers/{worker}/drain" in house.get("/workers").text
    assert house.post(f"/workers/{worker}/drain").location == "/workers"
    page = house.get("/workers/live").text
    assert f"/workers/{worker}/undrain" in page
    assert "chip-paused" in page
    house.post(f"/workers/{worker}/undrain")
    assert "chip-completed" in house.get("/workers").text


def test_without_a_worker_the_page_tells_how_to_start_one(visitor: Visitor) -> None:
    assert "No engine worker lives" in visitor.get("/workers").text
