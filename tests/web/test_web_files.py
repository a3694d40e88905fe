"""``/v1/files``: forms, limits, lists, ranges and deletion."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from runner.runtime import Runtime

Form = Callable[..., dict[str, Any]]
Upload = Callable[..., dict[str, Any]]

FILE = ("file", b'{"custom_id":"a"}\n', "a.jsonl")
PURPOSE = ("purpose", "batch")
ANCHOR = ("expires_after[anchor]", "created_at")

WRONG_FORMS: list[tuple[list[tuple[Any, ...]], str, str]] = [
    ([FILE], "missing_required_parameter", "purpose"),
    ([PURPOSE], "missing_required_parameter", "file"),
    ([], "missing_required_parameter", "file"),
    ([("purpose", "fine-tune"), FILE], "invalid_value", "purpose"),
    ([FILE, ("purpose", "vision")], "invalid_value", "purpose"),
    ([("purpose", "b" * 5000), FILE], "invalid_request", "purpose"),
    ([PURPOSE, ("file", "text")], "invalid_request", "file"),
    ([PURPOSE, FILE, FILE], "invalid_multipart", "file"),
    ([PURPOSE, ("colour", "red"), FILE], "unknown_parameter", "colour"),
    ([PURPOSE, ANCHOR, FILE], "missing_required_parameter", "expires_after[seconds]"),
    (
        [PURPOSE, ("expires_after[seconds]", "3600"), FILE],
        "missing_required_parameter",
        "expires_after[anchor]",
    ),
    (
        [PURPOSE, ("expires_after[anchor]", "now"), ("expires_after[seconds]", "3600"), FILE],
        "invalid_value",
        "expires_after[anchor]",
    ),
    (
        [PURPOSE, ANCHOR, ("expires_after[seconds]", "1e9"), FILE],
        "invalid_type",
        "expires_after[seconds]",
    ),
    (
        [PURPOSE, ANCHOR, ("expires_after[seconds]", "3599"), FILE],
        "invalid_request",
        "expires_after[seconds]",
    ),
    (
        [PURPOSE, ANCHOR, ("expires_after[seconds]", "9" * 1000), FILE],
        "invalid_request",
        "expires_after[seconds]",
    ),
    (
        [PURPOSE, FILE, ANCHOR, ("expires_after[seconds]", "3600")],
        "invalid_request",
        "expires_after",
    ),
]
WRONG_QUERIES = [
    ("limit=0", "integer_below_min_value", "limit"),
    ("limit=-5", "integer_below_min_value", "limit"),
    ("limit=10001", "integer_above_max_value", "limit"),
    ("limit=" + "9" * 5000, "invalid_type", "limit"),
    ("limit=", "invalid_type", "limit"),
    ("limit=1.5", "invalid_type", "limit"),
    ("limit=%D9%A5", "invalid_type", "limit"),
    ("order=up", "invalid_value", "order"),
    ("purpose=%00", "bad_request", None),
    ("%00=1", "bad_request", None),
]
NAMES = [
    ("upload", "upload"),
    ("../../etc/passwd", "passwd"),
    ("a\x00b\u202e.jsonl", "ab.jsonl"),
    ("\u00fcber \u2603.jsonl", "\u00fcber \u2603.jsonl"),
    ("n" * 400, "n" * 255),
    ("", "upload"),
]
RANGES = [
    ("bytes=0-0", 0, 1),
    ("bytes=5-", 5, None),
    ("bytes=-7", -7, None),
    ("bytes=1048570-1048580", 1_048_570, 1_048_581),
    ("bytes=2000000-99999999", 2_000_000, None),
    ("bytes=-99999999", 0, None),
]


def _error(answer: TestResponse, status: int = 400) -> tuple[str, str | None]:
    assert answer.status_code == status, answer.text
    error = answer.get_json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error["code"], error["param"]


def test_an_upload_becomes_a_processed_file(api: FlaskClient, form: Form) -> None:
    answer = api.post("/v1/files", **form(PURPOSE, FILE))
    file = answer.get_json()
    assert answer.status_code == 200
    assert file["id"].startswith("file-")
    assert file["expires_at"] - file["created_at"] == 30 * 86_400
    assert api.get(f"/v1/files/{file['id']}").get_json() == file
    for name in ("id", "created_at", "expires_at"):
        del file[name]
    assert file == {
        "object": "file",
        "bytes": len(FILE[1]),
        "filename": "a.jsonl",
        "purpose": "batch",
        "status": "processed",
        "status_details": None,
    }


def test_an_expiry_is_kept(api: FlaskClient, form: Form) -> None:
    parts = (PURPOSE, ANCHOR, ("expires_after[seconds]", "3600"), FILE)
    file = api.post("/v1/files", **form(*parts)).get_json()
    assert file["expires_at"] - file["created_at"] == 3600


def test_the_file_may_come_before_the_purpose(api: FlaskClient, form: Form) -> None:
    file = api.post("/v1/files", **form(FILE, PURPOSE)).get_json()
    assert file["bytes"] == len(FILE[1])


def test_a_wrong_form_is_refused_and_leaves_nothing(api: FlaskClient, form: Form) -> None:
    for parts, code, param in WRONG_FORMS:
        assert _error(api.post("/v1/files", **form(*parts))) == (code, param), parts
    assert api.get("/v1/files").get_json()["data"] == []


def test_a_body_that_is_no_form_is_refused(api: FlaskClient, form: Form) -> None:
    whole = form(PURPOSE, FILE)
    cut = {**whole, "data": whole["data"][:-20]}
    for number, sent in enumerate(
        [
            cut,
            {**whole, "data": b"\r\n"},
            {**whole, "data": b"nothing of the kind"},
            {**whole, "data": whole["data"].replace(b"Content-Disposition", b"Other")},
            {**whole, "data": whole["data"].replace(b"a.jsonl", b"\xff")},
            {**whole, "content_type": "multipart/form-data"},
            {**whole, "content_type": "multipart/form-data; boundary=\u00e9"},
            {"json": {"purpose": "batch"}},
        ]
    ):
        assert _error(api.post("/v1/files", **sent))[0] == "invalid_multipart", number
    assert api.get("/v1/files").get_json()["data"] == []


def test_a_form_of_too_many_parts_or_a_huge_head_is_refused(api: FlaskClient, form: Form) -> None:
    many = form(*([PURPOSE] * 50), FILE)
    head = form(("purpose", "batch", "x" * 1_200_000))
    for sent in (many, head):
        _error(api.post("/v1/files", **sent), 413)


@pytest.mark.parametrize("over", [1, 200_000, 3_000_000])
def test_a_file_beyond_the_limit_is_refused(
    over: int, api: FlaskClient, form: Form, runtime: Runtime
) -> None:
    data = b"x" * (runtime.settings.max_file_bytes + over)
    answer = api.post("/v1/files", **form(PURPOSE, ("file", data, "a.jsonl")))
    assert _error(answer, 413) == ("file_too_large", "file")
    assert api.get("/v1/files").get_json()["data"] == []


def test_a_file_at_the_limit_is_kept_byte_for_byte(
    api: FlaskClient, upload: Upload, runtime: Runtime
) -> None:
    data = bytes(range(256)) * (runtime.settings.max_file_bytes // 256)
    file = upload(data)
    assert file["bytes"] == len(data)
    assert api.get(f"/v1/files/{file['id']}/content").data == data


def test_a_name_is_made_fit_to_show(api: FlaskClient, upload: Upload) -> None:
    for sent, shown in NAMES:
        file = upload(name=sent)
        assert file["filename"] == shown
        content = api.get(f"/v1/files/{file['id']}/content")
        disposition = content.headers["Content-Disposition"]
        assert disposition.startswith("attachment; filename")
        assert disposition.isascii()


def test_a_list_pages_in_both_orders(api: FlaskClient, upload: Upload) -> None:
    made = [upload()["id"] for _ in range(5)]
    assert [file["id"] for file in api.get("/v1/files").get_json()["data"]] == made[::-1]
    for order, expected in (("asc", made), ("desc", made[::-1])):
        seen, after, more = [], None, True
        while more:
            query = {"order": order, "limit": 2, **({"after": after} if after else {})}
            page = api.get("/v1/files", query_string=query).get_json()
            seen += [file["id"] for file in page["data"]]
            assert (page["first_id"], page["last_id"]) == (
                page["data"][0]["id"],
                page["data"][-1]["id"],
            )
            after, more = page["last_id"], page["has_more"]
        assert seen == expected


def test_a_list_is_filtered_by_purpose(api: FlaskClient, upload: Upload) -> None:
    upload()
    for purpose, count in (("batch", 1), ("batch_output", 0), ("vision", 0)):
        page = api.get("/v1/files", query_string={"purpose": purpose}).get_json()
        assert len(page["data"]) == count
    assert page["first_id"] is None
    assert page["has_more"] is False


def test_a_wrong_query_is_refused(api: FlaskClient) -> None:
    for query, code, param in WRONG_QUERIES:
        assert _error(api.get(f"/v1/files?{query}")) == (code, param), query


def test_an_unknown_cursor_is_not_found(api: FlaskClient) -> None:
    for after in ("", "nonsense", "file-" + "0" * 26):
        answer = api.get("/v1/files", query_string={"after": after})
        assert _error(answer, 404)[0] == "not_found", after


def test_content_is_sent_as_an_attachment(api: FlaskClient, upload: Upload) -> None:
    file = upload(b"0123456789", 'a "quoted" name.jsonl')
    answer = api.get(f"/v1/files/{file['id']}/content")
    assert answer.data == b"0123456789"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Length"] == "10"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Accept-Ranges"] == "bytes"
    assert answer.headers["ETag"] == f'"{file["id"]}"'
    assert answer.headers["Content-Disposition"].startswith("attachment")
    head = api.head(f"/v1/files/{file['id']}/content")
    assert (head.data, head.headers["Content-Length"]) == (b"", "10")


def test_an_empty_file_has_empty_content(api: FlaskClient, upload: Upload) -> None:
    file = upload(b"")
    answer = api.get(f"/v1/files/{file['id']}/content")
    assert (answer.data, answer.headers["Content-Length"]) == (b"", "0")


def test_a_range_is_sent_alone(api: FlaskClient, upload: Upload) -> None:
    data = bytes(range(250)) * 10_000
    path = f"/v1/files/{upload(data)['id']}/content"
    for asked, start, stop in RANGES:
        answer = api.get(path, headers={"Range": asked})
        part, first = data[start:stop], start % len(data)
        assert answer.status_code == 206, asked
        assert answer.data == part, asked
        assert answer.headers["Content-Length"] == str(len(part))
        span = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        assert answer.headers["Content-Range"] == span


def test_a_range_outside_the_file_is_416(api: FlaskClient, upload: Upload) -> None:
    path = f"/v1/files/{upload(b'0123456789')['id']}/content"
    for asked in ("bytes=10-", "bytes=11-20", "bytes=99999999999999999999-"):
        answer = api.get(path, headers={"Range": asked})
        assert answer.status_code == 416, asked
        assert answer.headers["Content-Range"] == "bytes */10"
        assert answer.get_json()["error"]["code"] == "requested_range_not_satisfiable"


def test_a_range_that_is_not_understood_gets_the_whole(api: FlaskClient, upload: Upload) -> None:
    path = f"/v1/files/{upload(b'0123456789')['id']}/content"
    for asked in ("bytes=0-1,3-4", "lines=0-1", "bytes=5-2", "bytes=-0", "bytes=x", "x"):
        answer = api.get(path, headers={"Range": asked})
        assert (answer.status_code, answer.data) == (200, b"0123456789"), asked


def test_if_range_compares_the_etag(api: FlaskClient, upload: Upload) -> None:
    file = upload(b"0123456789")
    for etag, status in ((f'"{file["id"]}"', 206), ('"another"', 200)):
        headers = {"Range": "bytes=5-", "If-Range": etag}
        answer = api.get(f"/v1/files/{file['id']}/content", headers=headers)
        assert answer.status_code == status


def test_a_deleted_file_is_gone(api: FlaskClient, upload: Upload) -> None:
    file = upload()
    answer = api.delete(f"/v1/files/{file['id']}")
    assert answer.get_json() == {"id": file["id"], "object": "file", "deleted": True}
    for path in (f"/v1/files/{file['id']}", f"/v1/files/{file['id']}/content"):
        assert _error(api.get(path), 404)[0] == "not_found"
    _error(api.delete(f"/v1/files/{file['id']}"), 404)
    assert api.get("/v1/files").get_json()["data"] == []


def test_an_upload_repeated_with_its_idempotency_key_makes_one_file(
    api: FlaskClient, other: FlaskClient, form: Form
) -> None:
    headers = {"Idempotency-Key": "nightly-1"}

    def send(client: FlaskClient, data: str = '{"custom_id":"a"}\n') -> TestResponse:
        return client.post("/v1/files", headers=headers, **form(PURPOSE, ("file", data, "a.jsonl")))

    first = send(api).get_json()
    assert send(api).get_json() == first
    assert len(api.get("/v1/files").get_json()["data"]) == 1
    refusal = send(api, "{}\n")
    assert refusal.status_code == 400
    error = refusal.get_json()["error"]
    assert (error["code"], error["param"]) == ("idempotency_key_reused", "Idempotency-Key")
    assert send(other).get_json()["id"] != first["id"]
    assert api.get(f"/v1/files/{first['id']}/content").text == '{"custom_id":"a"}\n'
    api.delete(f"/v1/files/{first['id']}")
    assert send(api).get_json()["id"] != first["id"]
