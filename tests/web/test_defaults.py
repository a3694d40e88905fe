"""``defaults``: what the lines of a batch share is sent once, and each line may still differ."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from flask.testing import FlaskClient
from wire_lines import CHAT, chat, line, lines_of

from runner.domain.defaults import Defaults
from runner.domain.lines import parse_line

Upload = Callable[..., dict[str, Any]]
MakeBatch = Callable[..., dict[str, Any]]
RunBatch = Callable[..., dict[str, Any]]

SYSTEM = {"role": "system", "content": "Answer in one word. " * 40}
WRONG = [
    ([], "invalid_type", "defaults"),
    ("{}", "invalid_type", "defaults"),
    ({"model": 1}, "invalid_defaults", "defaults.model"),
    ({"messages": "Hi"}, "invalid_defaults", "defaults.messages"),
    ({"stream": True}, "invalid_defaults", "defaults.stream"),
    ({"seed": 2**64}, "invalid_defaults", "defaults"),
    ({"user": "u" * 64_000}, "invalid_defaults", "defaults"),
]
WRONG_TEXTS = [
    b'{"temperature": NaN}',
    b'{"temperature": 1e400}',
    b'{"metadata": ' + b"[" * 70 + b"]" * 70 + b"}",
]


def question(custom_id: str, text: str, **fields: object) -> bytes:
    """A line that leaves out what the batch says for all."""
    return line(custom_id, body={"messages": [{"role": "user", "content": text}], **fields})


def test_lines_with_defaults_are_answered_as_if_each_said_it_all(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    texts = [f"What is {n}?" for n in range(5)]
    defaults = {"model": model, "max_tokens": 3, "messages": [SYSTEM], "user": "a\0\u2028"}
    short = run_batch(
        b"\n".join(question(f"q{n}", text) for n, text in enumerate(texts)), defaults=defaults
    )
    long = run_batch(
        b"\n".join(
            chat(
                f"q{n}",
                max_tokens=3,
                messages=[SYSTEM, {"role": "user", "content": text}],
            )
            for n, text in enumerate(texts)
        )
    )
    assert (short["defaults"], long["defaults"]) == (defaults, None)
    assert (short["model"], short["status"]) == (model, "completed")
    answers = [
        [
            (
                answer["custom_id"],
                answer["response"]["body"]["choices"],
                answer["response"]["body"]["usage"],
            )
            for answer in lines_of(api, batch["output_file_id"])
        ]
        for batch in (short, long)
    ]
    assert answers[0] == answers[1]
    assert len(answers[0]) == 5


def test_a_line_wins_over_its_defaults(run_batch: RunBatch, api: FlaskClient, model: str) -> None:
    data = b"\n".join(
        [
            question("one", "Hi"),
            question("two", "Hi", max_tokens=2),
            question("hot", "Hi", temperature=3),
            question("other", "Hi", model="org/none"),
            line("bare", body={}),
            line("odd", body={"messages": "Hi"}),
        ]
    )
    defaults = {"model": model, "max_tokens": 1, "messages": [SYSTEM]}
    batch = run_batch(data, defaults=defaults, on_invalid="skip")
    usage = {
        answer["custom_id"]: answer["response"]["body"]["usage"]["completion_tokens"]
        for answer in lines_of(api, batch["output_file_id"])
    }
    assert usage == {"one": 1, "two": 2, "bare": 1}
    errors = {
        answer["custom_id"]: answer["response"]["body"]["error"]
        for answer in lines_of(api, batch["error_file_id"])
    }
    assert {name: error["param"] for name, error in errors.items()} == {
        "hot": "temperature",
        "other": "body.model",
        "odd": "messages",
    }


def test_a_default_that_no_line_can_honour_fails_the_lines(
    run_batch: RunBatch, api: FlaskClient, model: str
) -> None:
    batch = run_batch(question("a", "Hi"), defaults={"model": model, "temperature": "x"})
    (answer,) = lines_of(api, batch["error_file_id"])
    error = answer["response"]["body"]["error"]
    assert (error["code"], error["param"]) == ("invalid_type", "temperature")


def test_wrong_defaults_are_refused_at_create(api: FlaskClient, upload: Upload) -> None:
    body = {"input_file_id": upload()["id"], "endpoint": CHAT, "completion_window": "24h"}
    texts = [(json.dumps(value).encode(), code, param) for value, code, param in WRONG]
    texts += [(text, "invalid_defaults", "defaults") for text in WRONG_TEXTS]
    for text, code, param in texts:
        sent = json.dumps(body).encode()[:-1] + b', "defaults": ' + text + b"}"
        answer = api.post("/v1/batches", data=sent)
        assert answer.status_code == 400, (text[:50], answer.text)
        error = answer.get_json()["error"]
        assert (error["code"], error["param"]) == (code, param), text[:50]
        assert error["message"].endswith("."), error


@pytest.mark.parametrize(
    ("block", "body", "merged"),
    [
        ({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}}, {"a": {"x": 3}}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"messages": [1]}, {"messages": [2, 3]}, {"messages": [1, 2, 3]}),
        ({"messages": [1]}, {"messages": []}, {"messages": [1]}),
        ({"messages": []}, {"messages": [2]}, {"messages": [2]}),
        ({"messages": [1]}, {"b": 2}, {"messages": [1], "b": 2}),
        ({"messages": [1]}, {"messages": None}, {"messages": None}),
        ({"messages": [1]}, [1], [1]),
        ({}, {"a": 1}, {"a": 1}),
    ],
)
def test_the_merge_is_shallow_but_for_messages(block: object, body: object, merged: object) -> None:
    under = Defaults(json.dumps(block).encode()).under(msgspec.Raw(json.dumps(body).encode()))
    assert json.loads(bytes(under)) == merged


def test_shared_messages_do_not_hide_the_order_of_the_lines_own() -> None:
    defaults = Defaults(json.dumps({"model": "m", "messages": [SYSTEM] * 9}).encode())
    own = [parse_line(question("a", text), CHAT, 10_000, defaults).prompt for text in ("x", "y")]
    assert [b'"x"' in own[0], b'"y"' in own[1]] == [True, True]
    assert all(SYSTEM["content"].encode() not in prompt for prompt in own)
