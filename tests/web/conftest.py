"""An application on real services, two tenants, and factories of what their requests need."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from contract import Contract
from flask import Flask, Response, request, request_finished
from flask.testing import FlaskClient
from visitor import Visitor, token_of

from runner.config import Settings
from runner.domain.ids import JOB_PREFIX, decode
from runner.runtime import Runtime, open_runtime
from runner.services.closing import close_job
from runner.services.copies import run_copies
from runner.services.ingest import run_ingest
from runner.services.keys import create_key
from runner.services.models import NewModel, PriceList, register_model
from runner.services.reconcile import reconcile
from runner.worker.engine_worker import EngineWorker
from web import create_app

MAX_FILE_BYTES = 3 * 1024**2

BOUNDARY = "a-boundary-of-tests"

Form = Callable[..., dict[str, Any]]
Upload = Callable[..., dict[str, Any]]
MakeBatch = Callable[..., dict[str, Any]]
SignIn = Callable[[str], Visitor]
Ingest = Callable[[str], None]
RunBatch = Callable[..., dict[str, Any]]

ENDED = {"completed", "failed", "expired", "cancelled"}
PATIENCE = 120.0


@pytest.fixture
def settings(database_url: str, broker_url: str, tmp_path: Path) -> Settings:
    return Settings(
        data_dir=tmp_path,
        database_url=database_url,
        broker_url=broker_url,
        max_file_bytes=MAX_FILE_BYTES,
    )


@pytest.fixture
def runtime(settings: Settings) -> Iterator[Runtime]:
    runtime = open_runtime(settings)
    yield runtime
    runtime.close()


@pytest.fixture(scope="session")
def contracts() -> list[Contract]:
    """Holds the contract, once the first application has told it."""
    return []


@pytest.fixture
def app(runtime: Runtime, contracts: list[Contract]) -> Iterator[Flask]:
    """The application. Whatever it answers in a test must be as its own document says."""
    app = create_app(runtime)
    if not contracts:  # of another one: a test may still add to its own
        told = create_app(runtime).test_client().get("/openapi.json")
        contracts.append(Contract(told.get_json()))
    breaches: list[str] = []

    def check(_app: Flask, response: Response) -> None:
        breaches.extend(contracts[0].breaches(request, response))

    with request_finished.connected_to(check, app):
        yield app
    assert breaches == []


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    """A client without a key."""
    return app.test_client()


@pytest.fixture
def api_key(runtime: Runtime) -> str:
    with runtime.transaction() as session:
        return create_key(session, "one")[1]


@pytest.fixture
def other_key(runtime: Runtime) -> str:
    """A key of another project."""
    with runtime.transaction() as session:
        return create_key(session, "other")[1]


@pytest.fixture
def api(app: Flask, api_key: str) -> FlaskClient:
    """A client that sends the key."""
    return _client(app, api_key)


@pytest.fixture
def other(app: Flask, other_key: str) -> FlaskClient:
    """A client of another project."""
    return _client(app, other_key)


@pytest.fixture
def model(runtime: Runtime) -> str:
    """The name of a registered model."""
    with runtime.transaction() as session:
        new = NewModel(name="org/tiny", path="stub:", context_length=1024, manifest={})
        return register_model(session, new, PriceList()).name


@pytest.fixture
def form() -> Form:
    """Writes a form: fields are pairs, files have a name as well."""

    def form(*parts: tuple[str, ...]) -> dict[str, Any]:
        body = bytearray()
        for name, value, *filename in parts:
            where = f'; filename="{filename[0]}"' if filename else ""
            head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{where}\r\n\r\n'
            body += head.encode() + _bytes(value) + b"\r\n"
        body += f"--{BOUNDARY}--\r\n".encode()
        return {"data": bytes(body), "content_type": f"multipart/form-data; boundary={BOUNDARY}"}

    return form


@pytest.fixture
def upload(api: FlaskClient, form: Form) -> Upload:
    """Uploads bytes as the client would; returns the file object."""

    def upload(data: bytes = b'{"custom_id":"a"}\n', name: str = "lines.jsonl") -> dict[str, Any]:
        answer = api.post("/v1/files", **form(("purpose", "batch"), ("file", data, name)))
        assert answer.status_code == 200, answer.text
        return answer.get_json()

    return upload


@pytest.fixture
def make_batch(api: FlaskClient, upload: Upload) -> MakeBatch:
    """Creates a batch, by default on a file of its own; returns the batch object."""

    def make_batch(headers: dict[str, str] | None = None, **fields: object) -> dict[str, Any]:
        body = {
            "input_file_id": fields.pop("input_file_id", None) or upload()["id"],
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            **fields,
        }
        answer = api.post("/v1/batches", data=json.dumps(body), headers=headers or {})
        assert answer.status_code == 200, answer.text
        return answer.get_json()

    return make_batch


@pytest.fixture
def sign_in(app: Flask, form: Form) -> SignIn:
    """Signs a new browser in with a key."""

    def sign_in(secret: str) -> Visitor:
        client = app.test_client()
        token = token_of(client.get("/signin").text)
        answer = client.post("/signin", data={"csrf_token": token, "key": secret})
        assert (answer.status_code, answer.location) == (303, "/"), answer.text
        return Visitor(client, form)

    return sign_in


@pytest.fixture
def visitor(sign_in: SignIn, api_key: str) -> Visitor:
    return sign_in(api_key)


@pytest.fixture
def other_visitor(sign_in: SignIn, other_key: str) -> Visitor:
    """A browser of another project."""
    return sign_in(other_key)


@pytest.fixture
def ingest(runtime: Runtime) -> Ingest:
    """Does what a CPU worker does with a new job, named by its outer id."""

    def ingest(job_id: str) -> None:
        value = decode(JOB_PREFIX, job_id)
        assert value is not None
        run_ingest(runtime.sessions, runtime.settings, value)

    return ingest


@pytest.fixture
def run_batch(
    api: FlaskClient, runtime: Runtime, upload: Upload, make_batch: MakeBatch
) -> RunBatch:
    """Runs a file to its end with a real worker on the stub; returns the batch object."""

    def run_batch(data: bytes, **fields: object) -> dict[str, Any]:
        batch = make_batch(input_file_id=upload(data)["id"], **fields)
        job_id = decode(JOB_PREFIX, batch["id"])
        assert job_id is not None
        assert run_ingest(runtime.sessions, runtime.settings, job_id)
        worker = EngineWorker(runtime.settings, runtime.sessions, (), lambda: None)
        worker.start()
        try:
            give_up_at = time.monotonic() + PATIENCE
            while time.monotonic() < give_up_at:
                reconcile(runtime.sessions, runtime.settings)
                run_copies(runtime.sessions, job_id)
                with runtime.transaction() as session:
                    close_job(session, job_id)
                batch = api.get(f"/v1/batches/{batch['id']}").get_json()
                if batch["status"] in ENDED:
                    return batch
                time.sleep(0.05)
        finally:
            worker.drain()
            worker.join()
        raise AssertionError(f"the batch stays {batch['status']}")

    return run_batch


def _bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()


def _client(app: Flask, secret: str) -> FlaskClient:
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {secret}"
    return client
