"""``/v1/uploads``: parts in any order, whole or not at all."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select, text, update
from werkzeug.test import TestResponse

from runner.db.models import Upload, UploadChunk, UploadPart
from runner.runtime import Runtime
from runner.services.uploads import MAX_PART_BYTES, purge_uploads

Form = Callable[..., dict[str, Any]]
MIB = 1024**2
NEW = {"bytes": 10, "filename": "a.jsonl", "mime_type": "text/jsonl", "purpose": "batch"}
EXPIRY = {"anchor": "created_at", "seconds": 3600}

WRONG_NEW = [
    ({"bytes": 0}, 400, "invalid_request", "bytes"),
    ({"bytes": "10"}, 400, "invalid_type", "bytes"),
    ({"bytes": 1 << 80}, 413, "file_too_large", "bytes"),
    ({"purpose": "vision"}, 400, "invalid_value", "purpose"),
    ({"filename": 1}, 400, "invalid_type", "filename"),
    ({"expires_after": {**EXPIRY, "seconds": 1}}, 400, "invalid_request", "expires_after.seconds"),
    ({"colour": "red"}, 400, "unknown_parameter", "colour"),
]


@pytest.fixture
def begin(api: FlaskClient) -> Callable[..., str]:
    """Announces a file; returns the upload's id."""

    def begin(size: int = 10, **fields: object) -> str:
        answer = api.post("/v1/uploads", json={**NEW, "bytes": size, **fields})
        assert answer.status_code == 200, answer.text
        return answer.get_json()["id"]

    return begin


@pytest.fixture
def send(api: FlaskClient, form: Form) -> Callable[[str, bytes], str]:
    """Sends one part; returns its id."""

    def send(upload_id: str, data: bytes) -> str:
        answer = _send(api, form, upload_id, data)
        assert answer.status_code == 200, answer.text
        return answer.get_json()["id"]

    return send


def _send(api: FlaskClient, form: Form, upload_id: str, data: bytes) -> TestResponse:
    return api.post(f"/v1/uploads/{upload_id}/parts", **form(("data", data, "upload")))


def _complete(
    api: FlaskClient, upload_id: str, part_ids: list[str], **fields: object
) -> TestResponse:
    body = {"part_ids": part_ids, **fields}
    return api.post(f"/v1/uploads/{upload_id}/complete", json=body)


def _error(answer: TestResponse, status: int = 400) -> tuple[str, str | None]:
    assert answer.status_code == status, answer.text
    error = answer.get_json()["error"]
    assert error["message"].endswith(".")
    return error["code"], error["param"]


def _count(runtime: Runtime, table: type[Upload | UploadPart | UploadChunk]) -> int:
    with runtime.sessions() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def test_parts_become_a_file_in_the_order_that_is_told(
    api: FlaskClient, form: Form, runtime: Runtime
) -> None:
    last = b"0123456789"
    first = bytes(range(256)) * 9_000 + b"x" * 300_000  # crosses two chunks
    size = len(first + last)
    created = api.post("/v1/uploads", json={**NEW, "bytes": size, "expires_after": EXPIRY})
    upload = created.get_json()
    assert upload["expires_at"] - upload["created_at"] == 3600
    assert (upload["object"], upload["status"], upload["file"]) == ("upload", "pending", None)
    part = _send(api, form, upload["id"], last).get_json()
    assert (part["object"], part["upload_id"]) == ("upload.part", upload["id"])
    other = _send(api, form, upload["id"], first).get_json()
    md5 = hashlib.md5(first + last).hexdigest().upper()
    answer = _complete(api, upload["id"], [other["id"], part["id"]], md5=md5)
    done = answer.get_json()
    assert done["status"] == "completed", answer.text
    file = done["file"]
    assert (file["bytes"], file["filename"], file["purpose"]) == (size, "a.jsonl", "batch")
    assert file["expires_at"] - file["created_at"] == 3600
    assert api.get(f"/v1/files/{file['id']}").get_json() == file
    assert api.get(f"/v1/files/{file['id']}/content").data == first + last
    assert _count(runtime, UploadChunk) == 0


def test_a_wrong_announcement_is_refused(api: FlaskClient) -> None:
    for fields, status, code, param in WRONG_NEW:
        answer = api.post("/v1/uploads", json={**NEW, **fields})
        assert _error(answer, status) == (code, param), fields


def test_a_file_beyond_the_limit_is_refused_when_announced(
    api: FlaskClient, runtime: Runtime
) -> None:
    size = runtime.settings.max_file_bytes + 1
    answer = api.post("/v1/uploads", json={**NEW, "bytes": size})
    assert _error(answer, 413) == ("file_too_large", "bytes")


def test_a_wrong_part_is_refused_and_leaves_nothing(
    api: FlaskClient, form: Form, begin: Callable[..., str], runtime: Runtime
) -> None:
    path = f"/v1/uploads/{begin()}/parts"
    for sent, status, code in [
        (form(("data", b"", "upload")), 400, "invalid_request"),
        (form(("data", b"text")), 400, "invalid_request"),
        (form(("file", b"text", "upload")), 400, "invalid_multipart"),
        (form(("data", b"a", "x"), ("data", b"b", "x")), 400, "invalid_multipart"),
        (form(), 400, "missing_required_parameter"),
        ({"json": {}}, 400, "invalid_multipart"),
        (
            {
                **form(("data", b"x", "x")),
                "environ_overrides": {"CONTENT_LENGTH": str(MAX_PART_BYTES + 3 * MIB)},
            },
            413,
            "part_too_large",
        ),
    ]:
        assert _error(api.post(path, **sent), status)[0] == code
    assert _count(runtime, UploadPart) == _count(runtime, UploadChunk) == 0


def test_parts_may_be_sent_again_but_not_without_end(
    api: FlaskClient, form: Form, begin: Callable[..., str], send: Callable[[str, bytes], str]
) -> None:
    upload_id = begin()
    for _ in range(20):
        send(upload_id, b"0123456789")
    answer = _send(api, form, upload_id, b"x" * MIB)
    assert _error(answer, 413) == ("upload_too_large", "data")
    part = send(upload_id, b"0123456789")
    assert _complete(api, upload_id, [part]).status_code == 200


def test_what_does_not_add_up_is_refused_and_may_be_mended(
    api: FlaskClient, begin: Callable[..., str], send: Callable[[str, bytes], str]
) -> None:
    upload_id, stranger = begin(), begin()
    half, rest = send(upload_id, b"01234"), send(upload_id, b"56789")
    foreign = send(stranger, b"56789")
    for part_ids, fields, code, param in [
        ([half], {}, "size_mismatch", "part_ids"),
        ([], {}, "size_mismatch", "part_ids"),
        ([half, half], {}, "invalid_request", "part_ids"),
        ([half, foreign], {}, "invalid_request", "part_ids"),
        ([half, "part_x"], {}, "invalid_request", "part_ids"),
        ([half, rest], {"md5": "0" * 32}, "checksum_mismatch", "md5"),
        ([half, rest], {"md5": "nonsense"}, "invalid_request", "md5"),
    ]:
        assert _error(_complete(api, upload_id, part_ids, **fields)) == (code, param), part_ids
    assert api.get("/v1/files").get_json()["data"] == []
    assert _complete(api, upload_id, [half, rest]).status_code == 200


def test_an_ended_upload_takes_no_part_and_a_retry_of_its_end_is_harmless(
    api: FlaskClient, form: Form, begin: Callable[..., str], send: Callable[[str, bytes], str]
) -> None:
    done, gone = begin(), begin()
    part = send(done, b"0123456789")
    first = _complete(api, done, [part]).get_json()
    retry = api.post(
        f"/v1/uploads/{done}/complete",
        json={"part_ids": [part]},
        headers={"x-stainless-retry-count": "1"},
    )
    assert retry.get_json() == first
    assert _error(_complete(api, done, [part])) == ("state_conflict", "upload_id")
    send(gone, b"01234")
    assert api.post(f"/v1/uploads/{gone}/cancel").get_json()["status"] == "cancelled"
    for upload_id in (done, gone):
        assert _error(_send(api, form, upload_id, b"x"))[0] == "state_conflict"
        assert _error(api.post(f"/v1/uploads/{upload_id}/cancel"))[0] == "state_conflict"
    assert len(api.get("/v1/files").get_json()["data"]) == 1


def test_after_an_hour_an_upload_is_expired_and_its_parts_go(
    api: FlaskClient,
    form: Form,
    begin: Callable[..., str],
    send: Callable[[str, bytes], str],
    runtime: Runtime,
) -> None:
    late, fresh = begin(), begin()
    for upload_id in (late, fresh):
        send(upload_id, b"01234")
    with runtime.transaction() as session:
        first = select(Upload.id).order_by(Upload.id).limit(1).scalar_subquery()
        session.execute(update(Upload).where(Upload.id == first).values(expires_at=func.now()))
    answer = _send(api, form, late, b"56789")
    assert _error(answer)[0] == "state_conflict"
    assert "expired" in answer.text
    with runtime.transaction() as session:
        assert purge_uploads(session) == 0
    assert (_count(runtime, UploadPart), _count(runtime, Upload)) == (1, 2)
    with runtime.transaction() as session:
        session.execute(update(Upload).values(expires_at=func.now() - text("interval '2 days'")))
    with runtime.transaction() as session:
        assert purge_uploads(session) == 2
    assert _count(runtime, UploadChunk) == 0
