"""The official client, and large uploads, against the server that production runs."""

import hashlib
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import openai
import psutil
import pytest
from openai import OpenAI

from runner.config import Settings
from runner.runtime import Runtime

MIB = 1024**2
PATIENCE = 90.0
BODY = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}


@dataclass(frozen=True)
class Server:
    """A running gunicorn with one worker process of a few threads."""

    port: int
    process: psutil.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def resident_bytes(self) -> int:
        """Memory of the master and its worker."""
        family = [self.process, *self.process.children(recursive=True)]
        return sum(process.memory_info().rss for process in family)


@pytest.fixture
def server(settings: Settings, runtime: Runtime) -> Iterator[Server]:
    """gunicorn on this test's database, as ``gunicorn "web:create_app()"`` starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "DATABASE_URL": str(settings.database_url),
        "BROKER_URL": str(settings.broker_url),
        "TOKENMILL_DATA_DIR": str(settings.data_dir),
        "TOKENMILL_MAX_FILE_BYTES": str(256 * MIB),
    }
    command = [sys.executable, "-m", "gunicorn", "web:create_app()"]
    options = [
        "--bind",
        f"127.0.0.1:{port}",
        "--worker-class",
        "web.gunicorn_worker.JsonWorker",
        "--threads",
        "4",
    ]
    root = Path(__file__).parents[2]
    with subprocess.Popen([*command, *options], env=environment, cwd=root) as process:
        try:
            server = Server(port, psutil.Process(process.pid))
            _wait_until_alive(server)
            yield server
        finally:
            process.terminate()


@pytest.fixture
def openai_client(server: Server, api_key: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{server.url}/v1", api_key=api_key) as client:
        yield client


def _wait_until_alive(server: Server) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while time.monotonic() < give_up_at:
        try:
            with urlopen(f"{server.url}/livez"):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail("The server did not start.")


UNREADABLE = {
    b"no length": (b"GET /v1/files HTTP/1.1\r\nHost: x\r\nContent-Length: abc\r\n\r\n", 400),
    b"two lengths": (
        b"POST /v1/files HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        400,
    ),
    b"no HTTP": (b"What is this?\r\n\r\n", 400),
    b"an endless address": (b"GET /v1/files?a=" + b"x" * 5_000 + b" HTTP/1.1\r\n\r\n", 414),
    b"an endless header": (b"GET /v1/files HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
    b"too many headers": (b"GET /v1/files HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", 431),
    b"a NUL in a header": (b"GET /v1/files HTTP/1.1\r\nX: a\0b\r\n\r\n", 400),
    b"a bad name": (b"GET /v1/files HTTP/1.1\r\n<b>: y\r\n\r\n", 400),
    b"an unknown coding": (
        b"POST /v1/files HTTP/1.1\r\nTransfer-Encoding: tar\r\n\r\n",
        501,
    ),
}


def _exchange(server: Server, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        with suppress(ConnectionError):  # it answers what it has seen enough of
            connection.sendall(sent)
        answer = b""
        while piece := _receive(connection):
            answer += piece
        return answer


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(65536)
    except ConnectionResetError:
        return b""


def test_what_is_not_even_http_is_told_in_json(server: Server) -> None:
    for name, (sent, status) in UNREADABLE.items():
        head, _, body = _exchange(server, sent).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d " % status), (name, head)
        assert b"\r\nContent-Type: application/json\r\n" in head, name
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
        assert b"<" not in body, name
    with urlopen(f"{server.url}/livez") as answer:
        assert answer.status == 200


def test_a_body_that_breaks_off_is_the_fault_of_who_sent_it(server: Server, api_key: str) -> None:
    form = b"Content-Type: multipart/form-data; boundary=x\r\n"
    broken = b"Transfer-Encoding: chunked\r\n\r\n3\r\n{}\n\r\nzz\r\n"
    key = b"Connection: close\r\nAuthorization: Bearer %b\r\n" % api_key.encode()
    for path in (b"/v1/batches", b"/v1/files"):
        answer = _exchange(server, b"POST %b HTTP/1.1\r\n%b" % (path, key + form + broken))
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert b'"error":' in answer


def test_the_official_client_finds_all_it_expects(
    openai_client: OpenAI, tmp_path: Path, model: str
) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b'{"custom_id":"a"}\n' * 1000)
    file = openai_client.files.create(file=path, purpose="batch")
    assert (file.filename, file.bytes) == ("requests.jsonl", path.stat().st_size)
    # It is so at the first look: there would be no second one within the time of a test.
    processed = openai_client.files.wait_for_processing(file.id, poll_interval=3600)
    assert processed.status == "processed"
    assert openai_client.files.content(file.id).read() == path.read_bytes()

    expiry = {"anchor": "created_at", "seconds": 7200}
    small = openai_client.files.create(file=b"{}", purpose="batch", expires_after=expiry)
    assert small.expires_at == small.created_at + 7200

    batch = openai_client.batches.create(
        input_file_id=file.id,
        metadata={"run": "1"},
        output_expires_after=expiry,
        extra_body={"priority": 3},
        **BODY,
    )
    assert (batch.status, batch.metadata) == ("validating", {"run": "1"})
    assert batch.model_extra["priority"] == 3
    assert batch.usage.total_tokens == batch.request_counts.total == 0
    assert openai_client.batches.retrieve(batch.id) == batch
    assert openai_client.batches.cancel(batch.id).status == "cancelling"
    assert [item.id for item in openai_client.models.list()] == [model]
    assert openai_client.models.retrieve(model).owned_by == "tokenmill"
    assert openai_client.files.delete(small.id).deleted


def test_the_official_client_pages_to_the_end(openai_client: OpenAI) -> None:
    file = openai_client.files.create(file=b"{}", purpose="batch")
    made = [openai_client.batches.create(input_file_id=file.id, **BODY).id for _ in range(60)]
    assert [batch.id for batch in openai_client.batches.list()] == made[::-1]
    files = [openai_client.files.create(file=b"{}", purpose="batch").id for _ in range(5)]
    listed = openai_client.files.list(limit=2, order="asc")
    assert [item.id for item in listed] == [file.id, *files]


def test_the_official_client_raises_by_kind(openai_client: OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        openai_client.batches.create(input_file_id="file-none", **BODY)
    assert (refused.value.param, refused.value.type) == ("input_file_id", "invalid_request_error")
    assert refused.value.request_id.startswith("req_")
    with pytest.raises(openai.BadRequestError):
        openai_client.files.create(file=b"{}", purpose="fine-tune")
    with pytest.raises(openai.NotFoundError) as missing:
        openai_client.batches.retrieve("batch_none")
    assert missing.value.code == "not_found"
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="tm-wrong") as stranger,
        pytest.raises(openai.AuthenticationError) as unknown,
    ):
        stranger.batches.list()
    assert unknown.value.code == "invalid_api_key"


def test_the_official_client_learns_of_a_file_too_large(
    openai_client: OpenAI, tmp_path: Path
) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(300 * MIB)
    with pytest.raises(openai.APIStatusError) as refused:
        openai_client.with_options(max_retries=0).files.create(file=path, purpose="batch")
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")


def test_a_large_file_goes_in_and_out_in_flat_memory(server: Server, api_key: str) -> None:
    size = 64 * MIB
    _upload(server, api_key, MIB)
    before = server.resident_bytes()
    peaks: list[int] = []
    file = _upload(server, api_key, size, lambda: peaks.append(server.resident_bytes()))
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    headers = {"Authorization": f"Bearer {api_key}"}
    connection.request("GET", f"/v1/files/{file['id']}/content", headers=headers)
    answer = connection.getresponse()
    received = 0
    while piece := answer.read(MIB):
        received += len(piece)
        peaks.append(server.resident_bytes())
    connection.close()
    assert received == file["bytes"] == size
    assert max(peaks) - before < 40 * MIB


@pytest.mark.slow
def test_200_megabytes_of_lines_go_in_while_the_process_grows_by_less_than_80(
    server: Server, api_key: str
) -> None:
    _upload(server, api_key, MIB)
    before = server.resident_bytes()
    peaks: list[int] = []
    file = _upload(server, api_key, 200 * MIB, lambda: peaks.append(server.resident_bytes()))
    assert file["bytes"] == 200 * MIB
    growth = max(peaks) - before
    sys.stdout.write(f"an upload of 200 MiB grew the web process by {growth / MIB:.1f} MiB\n")
    assert growth < 80 * 10**6


def test_the_official_client_uploads_a_file_in_parts_in_flat_memory(
    openai_client: OpenAI, server: Server, tmp_path: Path
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_bytes((b"x" * 1023 + b"\n") * 1024 * 96)
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    openai_client.uploads.upload_file_chunked(
        file=b"{}\n", filename="small.jsonl", bytes=3, mime_type="text/jsonl", purpose="batch"
    )
    before = server.resident_bytes()
    with _watching(server) as peaks:
        upload = openai_client.uploads.upload_file_chunked(
            file=path, mime_type="text/jsonl", purpose="batch", part_size=32 * MIB, md5=md5
        )
    assert upload.status == "completed"
    assert upload.file is not None
    assert (upload.file.bytes, upload.file.filename) == (96 * MIB, "large.jsonl")
    growth = max(peaks) - before
    sys.stdout.write(f"96 MiB in parts grew the web process by {growth / MIB:.1f} MiB\n")
    assert growth < 40 * MIB
    batch = openai_client.batches.create(input_file_id=upload.file.id, **BODY)
    assert batch.input_file_id == upload.file.id


def test_the_official_client_cancels_an_upload(openai_client: OpenAI) -> None:
    upload = openai_client.uploads.create(
        bytes=5, filename="a.jsonl", mime_type="text/jsonl", purpose="batch"
    )
    assert openai_client.uploads.parts.create(upload.id, data=b"12345").upload_id == upload.id
    assert openai_client.uploads.cancel(upload.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError):
        openai_client.uploads.parts.create(upload.id, data=b"12345")


@contextmanager
def _watching(server: Server) -> Iterator[list[int]]:
    """Collects the server's memory while something goes on."""
    peaks = [server.resident_bytes()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            peaks.append(server.resident_bytes())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        done.set()
        thread.join()


def test_an_upload_of_unannounced_length_is_taken(server: Server, api_key: str) -> None:
    parts = [b"--b\r\nContent-Disposition: form-data; name=file; filename=x\r\n\r\n"]
    parts += [b"x" * 70_000] * 40
    parts += [b"\r\n--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n--b--\r\n"]
    headers = {
        "Authorization": f"Bearer {api_key}",
        "Content-Type": "multipart/form-data; boundary=b",
        "Transfer-Encoding": "chunked",
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("POST", "/v1/files", iter(parts), headers, encode_chunked=True)
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["bytes"]) == (200, 70_000 * 40)
    connection.close()


def test_an_upload_that_breaks_off_leaves_nothing(
    server: Server, api_key: str, openai_client: OpenAI
) -> None:
    class BrokeOff(Exception):
        pass

    def stop() -> None:
        raise BrokeOff

    with pytest.raises(BrokeOff):
        _upload(server, api_key, 8 * MIB, stop)
    assert openai_client.files.list().data == []


def test_a_key_may_be_used_while_it_uploads(
    server: Server, api_key: str, openai_client: OpenAI
) -> None:
    """Noting when a key was last used must not hold its row for as long as an upload lasts."""
    answers: list[int] = []
    quick = openai_client.with_options(timeout=PATIENCE, max_retries=0)
    _upload(server, api_key, 4 * MIB, lambda: answers.append(len(quick.files.list().data)))
    assert answers
    assert set(answers) == {0}


def _upload(
    server: Server, secret: str, size: int, watch: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Send a file of a size piece by piece, calling ``watch`` between the pieces."""

    head = (
        b"--b\r\nContent-Disposition: form-data; name=purpose\r\n\r\nbatch\r\n"
        b"--b\r\nContent-Disposition: form-data; name=file; filename=big\r\n\r\n"
    )
    tail = b"\r\n--b--\r\n"
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    try:
        connection.putrequest("POST", "/v1/files")
        connection.putheader("Authorization", f"Bearer {secret}")
        connection.putheader("Content-Type", "multipart/form-data; boundary=b")
        connection.putheader("Content-Length", str(len(head) + size + len(tail)))
        connection.endheaders()
        connection.send(head)
        for _ in range(size // MIB):
            connection.send((b"x" * 1023 + b"\n") * 1024)
            watch()
        connection.send(tail)
        answer = connection.getresponse()
        assert answer.status == 200
        return json.loads(answer.read())
    finally:
        connection.close()
