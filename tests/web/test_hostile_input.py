"""Files made to hurt, over the wire: each bad line is named, and every other line is answered."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient
from sqlalchemy import func, select, text, update
from wire_lines import CHAT, chat, line, lines_of

from runner.config import Settings
from runner.db.models import File, Job
from runner.domain.ids import FILE_PREFIX, JOB_PREFIX, decode
from runner.runtime import Runtime
from runner.services.ingest import run_ingest

Upload = Callable[..., dict[str, Any]]
MakeBatch = Callable[..., dict[str, Any]]
RunBatch = Callable[..., dict[str, Any]]
Fault = tuple[str, str | None]

MIB = 1024**2
JSON, TYPE, MISSING = "invalid_json_line", "invalid_type", "missing_required_parameter"


def raw(value: bytes, name: bytes = b"seed") -> bytes:
    """A good line with a value in its body that ``json`` would not write."""
    return chat().replace(b'"model"', b'"%b": %b, "model"' % (name, value))


def deep(levels: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * levels + closing * levels


# What fails a line before it runs: its code and its param.
BAD_LINES: dict[str, tuple[bytes, Fault]] = {
    "text": (b"This is not JSON.", (JSON, None)),
    "half a line": (line()[:-9], (JSON, None)),
    "two objects": (line() + line(), (JSON, None)),
    "a comma too many": (line()[:-1] + b",}", (JSON, None)),
    "a list": (b"[%b]" % line(), (JSON, None)),
    "a string": (b'"line"', (JSON, None)),
    "null": (b"null", (JSON, None)),
    "65 lists deep": (raw(deep(65)), (JSON, None)),
    "100,000 lists deep": (raw(deep(100_000)), (JSON, None)),
    "100,000 objects deep": (raw(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), (JSON, None)),
    "open for ever": (raw(b"[" * 100_000), (JSON, None)),
    "parts 5,000 deep": (raw(deep(5_000), b"messages"), (JSON, None)),
    "an integer of 65 bits": (raw(b"9223372036854775808"), (JSON, None)),
    "an integer of 30 digits": (raw(b"9" * 30), (JSON, None)),
    "an integer of 5,000 digits": (raw(b"9" * 5_000), (JSON, None)),
    "a negative one": (raw(b"-" + b"9" * 30), (JSON, None)),
    "1e400": (raw(b"1e400", b"temperature"), (JSON, None)),
    "1e131000": (raw(b"1e131000", b"temperature"), (JSON, None)),
    "NaN": (raw(b"NaN", b"temperature"), (JSON, None)),
    "Infinity": (raw(b"-Infinity", b"temperature"), (JSON, None)),
    "half a pair": (raw(rb'"\ud800"', b"user"), (JSON, None)),
    "the other half": (raw(rb'"a\udfffb"', b"user"), (JSON, None)),
    "a bare control character": (raw(b'"a\x01b"', b"user"), (JSON, None)),
    "a bare NUL": (raw(b'"a\0b"', b"user"), (JSON, None)),
    "Latin-1": (raw(b'"caf\xe9"', b"user"), (JSON, None)),
    "an overlong form": (raw(b'"\xc0\xaf"', b"user"), (JSON, None)),
    "UTF-16": (line().decode().encode("utf-16"), (JSON, None)),
    "a mark inside": (b"\xef\xbb\xbf" + line(), (JSON, None)),
    "no custom id": (line(custom_id="absent"), (MISSING, "custom_id")),
    "no method": (line(method="absent"), (MISSING, "method")),
    "no url": (line(url="absent"), (MISSING, "url")),
    "no body": (line(body="absent"), (MISSING, "body")),
    "custom id is a number": (line(custom_id=7), (TYPE, "custom_id")),  # type: ignore[arg-type]
    "custom id is empty": (line(custom_id=""), ("invalid_request", "custom_id")),
    "custom id has a NUL": (line(custom_id="a\0b"), ("invalid_request", "custom_id")),
    "custom id turns the text": (line(custom_id="a\u202eb"), ("invalid_request", "custom_id")),
    "custom id is long": (line(custom_id="a" * 513), ("invalid_request", "custom_id")),
    "method is GET": (line(method="GET"), ("invalid_request", "method")),
    "method is a list": (line(method=["POST"]), ("invalid_request", "method")),
    "url is a number": (line(url=1), (TYPE, "url")),
    "url of another batch": (line(url="/v1/completions"), ("url_mismatch", "url")),
    "url of nothing": (line(url="https://example.org/\0"), ("invalid_url", "url")),
    "body is null": (line(body=None), (TYPE, "body")),
    "body is a string": (line(body="{}"), (TYPE, "body")),
    "body is a list": (line(body=[{}]), (TYPE, "body")),
    "body is empty": (line(body={}), (MISSING, "body.model")),
    "model is a number": (chat(model=3), (TYPE, "body.model")),
    "model is unknown": (chat(model="org/none"), ("model_not_found", "body.model")),
    "model has a NUL": (chat(model="org/tiny\0"), ("model_not_found", "body.model")),
    "model is endless": (chat(model="m" * 100_000), ("model_not_found", "body.model")),
    "stream is true": (chat(stream=True), ("streaming_unsupported", "body.stream")),
    "stream is a word": (chat(stream="no"), (TYPE, "body.stream")),
}
# What fails a line when it runs: a 400 with this code and param.
BAD_BODIES: dict[str, tuple[bytes, Fault]] = {
    "temperature is a word": (chat(temperature="x"), (TYPE, "temperature")),
    "temperature is huge": (chat(temperature=1e308), ("invalid_value", "temperature")),
    "temperature is a list": (chat(temperature=[1]), (TYPE, "temperature")),
    "top_p is negative": (chat(top_p=-1), ("invalid_value", "top_p")),
    "max_tokens is zero": (chat(max_tokens=0), ("invalid_value", "max_tokens")),
    "max_tokens is a fraction": (chat(max_tokens=1.5), (TYPE, "max_tokens")),
    "max_tokens is true": (chat(max_tokens=True), (TYPE, "max_tokens")),
    "seed is a word": (chat(seed="lucky"), (TYPE, "seed")),
    "stop is a number": (chat(stop=1), (TYPE, "stop")),
    "stop is endless": (chat(stop="s" * 10_000), ("invalid_value", "stop")),
    "n is a million": (chat(n=1_000_000), ("invalid_value", "n")),
    "messages is a text": (chat(messages="Hi"), (TYPE, "messages")),
    "messages is empty": (chat(messages=[]), ("invalid_value", "messages")),
    "a message is null": (chat(messages=[None]), (TYPE, "messages[0]")),
    "content is a number": (
        chat(messages=[{"role": "user", "content": 1}]),
        (TYPE, "messages[0].content"),
    ),
    "content is lists of lists": (
        chat(messages=[{"role": "user", "content": [[[[["Hi"]]]]]}]),
        (TYPE, "messages[0].content[0]"),
    ),
    "an image of the inside": (
        chat(
            messages=[
                {
                    "role": "user",
                    "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1"}}],
                }
            ]
        ),
        ("invalid_value", "messages[0].content"),
    ),
    "role is a script": (
        chat(messages=[{"role": "<script>", "content": "Hi"}]),
        ("invalid_value", "messages[0].role"),
    ),
    "an unknown field": (chat(**{"\0\u202e": 1}), ("unsupported_value", "\0\u202e")),
}
# What must run, however odd.
GOOD_LINES = {
    "a NUL as an escape": chat(user="a\0b", messages=[{"role": "user", "content": "a\0b\0"}]),
    "separators of other alphabets": chat().replace(b"Hello.", "a\u2028b\u2029c\x85d".encode()),
    "a form feed as an escape": chat(messages=[{"role": "user", "content": "a\x0cb\x1cc"}]),
    "a pair of surrogates": chat().replace(b"Hello.", rb"\ud83d\ude00"),
    "64 levels": raw(deep(61), b"metadata"),
    "integers of 64 bits": raw(b"9223372036854775807"),
    "keys that come twice": raw(b'"first"', b"user").replace(b'"model"', b'"user":"b","model"'),
    "spaces": b" \t" + chat() + b" \t",
    "a custom id of all alphabets": chat("\u00fc-\u65e5\u672c-\U0001f600"),
}


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"max_file_bytes": 32 * MIB})


def named(number: int, data: bytes) -> bytes:
    """A line with a custom id of its own, if it has the usual one."""
    return data.replace(b'"custom_id": "x"', b'"custom_id": "x%d"' % number)


def test_every_bad_line_is_named_with_code_and_param(run_batch: RunBatch, model: str) -> None:
    lines = [named(number, data) for number, (data, _) in enumerate(BAD_LINES.values())]
    batch = run_batch(b"\n".join([chat("good"), b"", *lines, chat("good too")]))
    assert (batch["status"], batch["output_file_id"]) == ("failed", None)
    errors = batch["errors"]["data"]
    found = {error["line"]: (error["code"], error["param"]) for error in errors}
    expected = dict(enumerate((fault for _, fault in BAD_LINES.values()), start=3))
    for number, name in enumerate(BAD_LINES, start=3):
        assert found.get(number) == expected[number], name
    assert found == expected
    for error in errors:
        assert error["message"].endswith("."), error
        assert 15 < len(error["message"]) < 400
        assert "$[" not in error["message"], error


def test_bad_lines_and_bad_bodies_cost_no_other_line(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    bad = [data for data, _ in BAD_LINES.values()]
    hurt = [data for data, _ in BAD_BODIES.values()]
    good = list(GOOD_LINES.values())
    lines = [named(number, data) for number, data in enumerate(bad + hurt + good)]
    batch = run_batch(b"\r\n".join(lines), on_invalid="skip")
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {
        "total": len(lines),
        "completed": len(good),
        "failed": len(bad) + len(hurt),
    }
    output = [answer["custom_id"] for answer in lines_of(api, batch["output_file_id"])]
    assert output == [json.loads(data)["custom_id"] for data in lines[-len(good) :]]
    answers = lines_of(api, batch["error_file_id"])
    assert {answer["response"]["status_code"] for answer in answers} == {400}
    errors = [answer["response"]["body"]["error"] for answer in answers]
    names = [*BAD_LINES, *BAD_BODIES]
    faults = [fault for _, fault in [*BAD_LINES.values(), *BAD_BODIES.values()]]
    for name, error, fault in zip(names, errors, faults, strict=True):
        param = error["param"] and error["param"].replace("[...]", "[0]")
        assert (error["code"], param) == fault, name
        assert error["message"].endswith("."), error


def test_marks_and_line_ends_of_other_systems_are_no_fault(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    batch = run_batch(b"\xef\xbb\xbf" + chat("a") + b"\r\n\r\n \t\r\n" + chat("b") + b"\r")
    assert batch["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert [answer["custom_id"] for answer in lines_of(api, batch["output_file_id"])] == ["a", "b"]


@pytest.mark.parametrize(
    "data", [b"", b"\n", b"\n \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n\n"]
)
def test_a_file_without_a_line_fails_as_empty(run_batch: RunBatch, model: str, data: bytes) -> None:
    (error,) = run_batch(data)["errors"]["data"]
    assert (error["code"], error["line"], error["param"]) == ("empty_file", None, None)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_file_in_another_encoding_is_told_to_be_utf_8(
    run_batch: RunBatch, model: str, encoding: str
) -> None:
    data = (chat("a") + b"\n" + chat("b") + b"\n").decode().encode(encoding)
    error = run_batch(data)["errors"]["data"][0]
    assert (error["code"], error["line"]) == (JSON, 1)
    assert "save the file as UTF-8" in error["message"]


def test_a_line_at_the_limit_runs_and_one_byte_more_is_named(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    padding = b" " * (10 * MIB - len(chat("a")))
    batch = run_batch(
        b"\n".join([chat("a")[:-1] + padding + b"}", chat("b") + padding + b" ", chat("c")]),
        on_invalid="skip",
    )
    assert batch["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
    assert [answer["custom_id"] for answer in lines_of(api, batch["output_file_id"])] == ["a", "c"]
    (refused,) = lines_of(api, batch["error_file_id"])
    assert refused["response"]["body"]["error"]["code"] == "line_too_long"
    assert batch["errors"]["data"][0]["line"] == 2


def test_a_custom_id_used_twice_names_both_lines(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    data = b"\n".join([chat("a"), chat("b"), chat("\\u0061"), chat("a")])
    data = data.replace(rb"\\u0061", rb"\u0061")  # the same id, written otherwise
    errors = run_batch(data)["errors"]["data"]
    assert [(error["code"], error["line"], error["param"]) for error in errors] == [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 4, "custom_id"),
    ]
    assert all("line 1" in error["message"] for error in errors)
    batch = run_batch(data, on_invalid="skip")
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}


def test_of_a_key_that_comes_twice_the_last_is_checked_and_used(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    twice = chat("first").replace(b'"custom_id"', b'"custom_id": "lost", "custom_id"', 1)
    streams = chat("b", stream=True).replace(b'"stream": true', b'"stream":true,"stream":false')
    hidden = chat("c").replace(b'"model"', b'"model": "org/none", "model"')
    batch = run_batch(b"\n".join([twice, streams, hidden]))
    answers = lines_of(api, batch["output_file_id"])
    assert [answer["custom_id"] for answer in answers] == ["first", "b", "c"]
    assert {answer["response"]["body"]["model"] for answer in answers} == {"org/tiny"}


def test_a_file_that_is_gone_or_of_another_kind_is_no_input(
    api: FlaskClient, runtime: Runtime, upload: Upload, run_batch: RunBatch, model: str
) -> None:
    output = run_batch(chat("a"))["output_file_id"]
    expired, deleted = upload()["id"], upload()["id"]
    _expire(runtime, expired)
    api.delete(f"/v1/files/{deleted}")
    for file_id in (output, expired, deleted):
        body = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
        answer = api.post("/v1/batches", json=body)
        assert answer.status_code == 400, answer.text
        assert answer.get_json()["error"]["param"] == "input_file_id"


def test_a_file_that_expires_before_it_is_read_fails_the_batch(
    api: FlaskClient, runtime: Runtime, make_batch: MakeBatch
) -> None:
    batch = make_batch()
    _expire(runtime, batch["input_file_id"])
    job_id = decode(JOB_PREFIX, batch["id"])
    assert job_id is not None
    assert run_ingest(runtime.sessions, runtime.settings, job_id)
    batch = api.get(f"/v1/batches/{batch['id']}").get_json()
    assert batch["status"] == "failed"
    assert [error["code"] for error in batch["errors"]["data"]] == ["file_not_found"]
    with runtime.sessions() as session:
        assert session.scalar(select(func.count()).select_from(Job)) == 1


def _expire(runtime: Runtime, file_id: str) -> None:
    with runtime.transaction() as session:
        session.execute(
            update(File)
            .where(File.id == decode(FILE_PREFIX, file_id))
            .values(expires_at=func.now() - text("interval '1 second'"))
        )
