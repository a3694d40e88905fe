"""Faults that frameworks and servers would answer with a page: here each is one JSON object."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from web.gunicorn_worker import error_answer

Headers = dict[str, str]
FILES, BATCHES = "/v1/files", "/v1/batches"
BOUNDARY = "multipart/form-data; boundary=x"
NO_NAME = b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--\r\n"
LATIN = b"--x\r\nContent-Disposition: form-data; name=\xff\r\n\r\n1\r\n--x--\r\n"

# Method, path, headers, body, and the answer's status and code.
FAULTS: dict[str, tuple[str, str, Headers, bytes, int, str]] = {
    "two slashes": ("GET", "/v1//files", {}, b"", 404, "not_found"),
    "a slash behind": ("GET", "/v1/files/", {}, b"", 404, "not_found"),
    "a slash in an id": ("GET", "/v1/files/a%2Fb", {}, b"", 404, "not_found"),
    "no UTF-8 in an id": ("GET", "/v1/files/%FF", {}, b"", 404, "not_found"),
    "half a percent": ("GET", "/v1/files/%F", {}, b"", 404, "not_found"),
    "NUL in a path": ("GET", "/v1/batches/%00", {}, b"", 404, "not_found"),
    "NUL in a query": ("GET", "/v1/files?purpose=%00", {}, b"", 400, "bad_request"),
    "NUL in a header": ("POST", BATCHES, {"Idempotency-Key": "a\0"}, b"{}", 400, "bad_request"),
    "no UTF-8 in a query": ("GET", "/v1/files?limit=%FF", {}, b"", 400, "invalid_type"),
    "other digits": ("GET", "/v1/files?limit=%EF%BC%92", {}, b"", 400, "invalid_type"),
    "an endless limit": ("GET", "/v1/files?limit=" + "9" * 9_000, {}, b"", 400, "invalid_type"),
    "limit 0": ("GET", "/v1/batches?limit=0", {}, b"", 400, "integer_below_min_value"),
    "limit 101": ("GET", "/v1/batches?limit=101", {}, b"", 400, "integer_above_max_value"),
    "no cursor": ("GET", "/v1/batches?after=", {}, b"", 404, "not_found"),
    "another cursor": ("GET", "/v1/batches?after=file-1", {}, b"", 404, "not_found"),
    "an unknown order": ("GET", "/v1/files?order=up", {}, b"", 400, "invalid_value"),
    "an unknown method": ("TRACE", FILES, {}, b"", 405, "method_not_allowed"),
    "an invented method": ("BREW", FILES, {}, b"", 405, "method_not_allowed"),
    "a length of letters": ("POST", BATCHES, {"Content-Length": "abc"}, b"", 400, "bad_request"),
    "a length below zero": ("POST", BATCHES, {"Content-Length": "-5"}, b"", 400, "bad_request"),
    "gzip": ("POST", BATCHES, {"Content-Encoding": "gzip"}, b"{}", 415, "unsupported_media_type"),
    "gzip of a form": (
        "POST",
        FILES,
        {"Content-Encoding": "gzip", "Content-Type": BOUNDARY},
        b"",
        415,
        "unsupported_media_type",
    ),
    "too many bytes": ("POST", BATCHES, {}, b" " * (1024**2 + 1), 413, "request_entity_too_large"),
    "no JSON": ("POST", BATCHES, {}, b"\xff", 400, "invalid_json"),
    "no form": ("POST", FILES, {"Content-Type": "text/plain"}, b"x", 400, "invalid_multipart"),
    "no boundary": (
        "POST",
        FILES,
        {"Content-Type": "multipart/form-data"},
        b"x",
        400,
        "invalid_multipart",
    ),
    "another boundary": ("POST", FILES, {"Content-Type": BOUNDARY}, b"x", 400, "invalid_multipart"),
    "a nameless part": (
        "POST",
        FILES,
        {"Content-Type": BOUNDARY},
        NO_NAME,
        400,
        "invalid_multipart",
    ),
    "a name in Latin-1": (
        "POST",
        FILES,
        {"Content-Type": BOUNDARY},
        LATIN,
        400,
        "invalid_multipart",
    ),
    "a range beyond": ("GET", "{file}", {"Range": "bytes=99-"}, b"", 416, ""),
    "Basic in Latin-1": ("GET", FILES, {"Authorization": "Basic \xff"}, b"", 401, ""),
    "Basic of nothing": ("GET", FILES, {"Authorization": "Basic //79"}, b"", 401, ""),
    "a key in Latin-1": ("GET", FILES, {"Authorization": "Bearer \xe9"}, b"", 401, ""),
}


def test_every_fault_is_one_error_object_of_the_contract(
    api: FlaskClient, upload: Callable[..., dict[str, Any]]
) -> None:
    content = f"/v1/files/{upload()['id']}/content"
    for name, (method, path, headers, body, status, code) in FAULTS.items():
        path = path.format(file=content)
        length = headers.get("Content-Length")
        override = {} if length is None else {"CONTENT_LENGTH": length}
        answer = api.open(
            path, method=method, headers=headers, data=body, environ_overrides=override
        )
        assert answer.status_code == status, (name, answer.text)
        assert answer.headers["Content-Type"] == "application/json", name
        told = answer.get_json()
        assert set(told) == {"error"}, name
        error = told["error"]
        assert set(error) == {"message", "type", "param", "code"}, name
        assert error["code"] == code or not code, (name, error)
        assert error["message"].endswith(".") or code == "unknown_parameter", (name, error)
        kind = "authentication_error" if status == 401 else "invalid_request_error"
        assert error["type"] == kind, name


def test_a_scheme_may_be_written_in_any_case(api: FlaskClient, api_key: str) -> None:
    for scheme in ("bearer", "BEARER"):
        headers = {"Authorization": f"{scheme}  {api_key} "}
        assert api.get(FILES, headers=headers).status_code == 200


def test_an_encoding_that_changes_nothing_is_no_fault(api: FlaskClient) -> None:
    headers = {"Content-Encoding": "identity"}
    assert api.post(BATCHES, data=b"{", headers=headers).get_json()["error"]["code"] == (
        "invalid_json"
    )


def test_a_whole_number_may_be_written_with_a_point(
    api: FlaskClient, make_batch: Callable[..., dict[str, Any]]
) -> None:
    assert make_batch(priority=3.0)["priority"] == 3
    upload = {"bytes": 2.0, "filename": "a", "mime_type": "text/jsonl", "purpose": "batch"}
    assert api.post("/v1/uploads", json=upload).get_json()["bytes"] == 2
    for wrong in (2.5, True, "2", 1e400):
        answer = api.post("/v1/uploads", json={**upload, "bytes": wrong})
        assert answer.get_json()["error"]["param"] in ("bytes", None), wrong
        assert answer.status_code == 400


@pytest.mark.parametrize("number", [b"NaN", b"1e400", b"-Infinity"])
def test_defaults_with_a_number_that_is_none_are_told_so(api: FlaskClient, number: bytes) -> None:
    file_id = "file-" + "0" * 26
    body = b'{"input_file_id":"%b","endpoint":"/v1/completions","completion_window":"24h",'
    body = body % file_id.encode() + b'"defaults":{"temperature":%b}}' % number
    error = api.post(BATCHES, data=body).get_json()["error"]
    assert (error["code"], error["param"]) == ("invalid_defaults", "defaults")
    assert "out of range" in error["message"]


@pytest.mark.parametrize("status", [400, 403, 414, 417, 431, 500, 501])
def test_the_servers_own_answers_are_whole(status: int) -> None:
    head, _, body = error_answer(status).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert b"Content-Length: %d" % len(body) in head
    assert b'"param":null' in body
