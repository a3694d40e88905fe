"""``/metrics``: figures for this host, hidden from others, and free of what is a caller's."""

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select
from wire_lines import chat

from runner.db.models import Worker
from runner.domain.lanes import Lane
from runner.runtime import Runtime
from runner.services.workers import NewWorker, mark_ready, register_worker

RunBatch = Callable[..., dict[str, Any]]
MakeBatch = Callable[..., dict[str, Any]]


def read(client: FlaskClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample, by its name and labels."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def sample(client: FlaskClient, name: str, **labels: str) -> float:
    return read(client)[name, frozenset(labels.items())]


def test_requests_are_counted_by_route_and_status(api: FlaskClient) -> None:
    for _ in range(3):
        api.get("/v1/files/file-none")
    api.open("/secret-path", method="PROPFIND")
    assert (
        sample(
            api,
            "tokenmill_http_requests_total",
            method="GET",
            route="/v1/files/<file_id>",
            status="404",
        )
        == 3
    )
    assert (
        sample(api, "tokenmill_http_requests_total", method="none", route="none", status="404") == 1
    )
    assert (
        sample(
            api,
            "tokenmill_http_request_duration_seconds_count",
            method="GET",
            route="/v1/files/<file_id>",
        )
        == 3
    )
    text = api.get("/metrics").text
    assert "secret" not in text
    assert "file-none" not in text


def test_jobs_lines_and_workers_are_those_of_the_database(
    api: FlaskClient, make_batch: MakeBatch, run_batch: RunBatch, model: str, runtime: Runtime
) -> None:
    run_batch(chat("a"))
    make_batch()
    with runtime.transaction() as session:
        worker_id = register_worker(session, NewWorker("engine", "here", 1))
    with runtime.transaction() as session:
        mark_ready(session, worker_id, "a worker of a test", 8, Lane("stub"))
    assert sample(api, "tokenmill_jobs", state="completed") == 1
    assert sample(api, "tokenmill_jobs", state="validating") == 1
    assert sample(api, "tokenmill_jobs", state="failed") == 0
    assert sample(api, "tokenmill_lines", state="pending") == 0
    assert sample(api, "tokenmill_workers_alive", kind="engine", state="ready") == 1
    assert sample(api, "tokenmill_oldest_job_age_seconds") >= 0
    with runtime.sessions() as session:
        descriptions = session.scalars(select(Worker.description)).all()
    assert any("metrics: http://127.0.0.1:" in text for text in descriptions)


@pytest.mark.parametrize("address", ["10.0.0.7", "::ffff:10.0.0.7", "2001:db8::1", "", "unix:"])
def test_others_find_no_such_page(client: FlaskClient, address: str) -> None:
    answer = client.get("/metrics", environ_overrides={"REMOTE_ADDR": address})
    assert answer.status_code == 404
    assert "tokenmill_" not in answer.text


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_host_needs_no_key_unless_it_only_passes_requests_on(
    client: FlaskClient, address: str
) -> None:
    local = {"REMOTE_ADDR": address}
    assert client.get("/metrics", environ_overrides=local).status_code == 200
    for name in ("Forwarded", "X-Forwarded-For", "X-Real-IP"):
        answer = client.get("/metrics", environ_overrides=local, headers={name: "for=10.0.0.7"})
        assert answer.status_code == 404


def test_a_key_opens_the_page_from_anywhere(app: Flask, api: FlaskClient) -> None:
    far = {"REMOTE_ADDR": "10.0.0.7"}
    assert api.get("/metrics", environ_overrides=far).status_code == 200
    wrong = {"Authorization": "Bearer tm-unknown"}
    answer = app.test_client().get("/metrics", environ_overrides=far, headers=wrong)
    assert answer.status_code == 404
