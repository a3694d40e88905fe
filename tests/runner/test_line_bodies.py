"""The body of a line: what is honoured, and what is refused by name."""

import json
import subprocess
import sys

import pytest
from workshop import CHAT, answers

from runner.domain.ids import FileId, JobId, ModelId, PriceId, ProjectId, new_uuid
from runner.domain.leases import ItemInput, Lease, ShardKey
from runner.domain.pricing import Price
from runner.inference.backend import LineRefusal
from runner.inference.requests import LineRequest, default_seed, parse_request
from runner.inference.stub import StubBackend

COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]


def lease_for(endpoint: str = CHAT) -> Lease:
    return Lease(
        key=ShardKey(JobId(new_uuid()), 0, 1),
        attempt=1,
        suspect=False,
        priority=0,
        project_id=ProjectId(new_uuid()),
        api_key_id=None,
        model_id=ModelId(new_uuid()),
        price=Price(PriceId(new_uuid()), 1, 1, 1, 1),
        endpoint=endpoint,
        input_file_id=FileId(new_uuid()),
        idx=(0,),
    )


def line_of(body: dict[str, object] | bytes, endpoint: str = CHAT) -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps({"model": "m", **body}).encode()
    return b'{"custom_id":"a","method":"POST","url":"%b","body":%b}' % (endpoint.encode(), raw)


def request_of(body: dict[str, object], endpoint: str = CHAT) -> LineRequest:
    return parse_request(line_of(body, endpoint), lease_for(endpoint), 0)


def refusal_of(body: dict[str, object] | bytes, endpoint: str = CHAT) -> LineRefusal:
    item = ItemInput(0, "a", line_of(body, endpoint))
    with pytest.raises(LineRefusal) as caught:
        StubBackend().prepare(lease_for(endpoint), item)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"top_logits": 3}, "top_logits", "unsupported_value"),
        ({"response_format": "text"}, "response_format", "invalid_type"),
        ({"stream_options": {}}, "stream_options", "unsupported_value"),
        ({"temperature": 3}, "temperature", "invalid_value"),
        ({"temperature": -0.1}, "temperature", "invalid_value"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"top_p": 1.1}, "top_p", "invalid_value"),
        ({"top_k": -1}, "top_k", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"max_tokens": 1.5}, "max_tokens", "invalid_type"),
        ({"max_tokens": 5, "max_completion_tokens": 5}, "max_tokens", "invalid_value"),
        ({"seed": "x"}, "seed", "invalid_type"),
        ({"stop": ["x"] * 17}, "stop", "invalid_value"),
        ({"stop": ["x" * 65]}, "stop", "invalid_value"),
        ({"stop": [""]}, "stop", "invalid_value"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": "Hello"}, "messages", "invalid_type"),
        ({"messages": [{"content": "x"}]}, "messages[0]", "invalid_type"),
        ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*HELLO, {"role": "user"}]}, "messages[1].content", "invalid_value"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "invalid_value",
        ),
        ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type"),
    ],
)
def test_a_chat_that_cannot_be_honoured_is_refused_by_name(
    changes: dict[str, object], param: str, code: str
) -> None:
    refusal = refusal_of({"messages": HELLO, **changes})
    assert refusal.param is not None
    assert refusal.param.replace("[...]", "[0]") == param
    assert refusal.code == code
    assert refusal.message.endswith(".")


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "messages": HELLO}, "messages"),
    ],
)
def test_a_completion_that_cannot_be_honoured_is_refused_by_name(
    changes: dict[str, object], param: str
) -> None:
    assert refusal_of(changes, COMPLETIONS).param == param


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"temperature":1e999}',
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"max_tokens":'
        + b"9" * 5_000
        + b"}",
        b'{"model":"m","messages":[{"role":"user","content":"x"}],"metadata":'
        + b"[" * 900
        + b"]" * 900
        + b"}",
    ],
)
def test_numbers_and_depths_beyond_reason_are_refused_or_run(body: bytes) -> None:
    finished = answers(lease_for(), [ItemInput(0, "a", line_of(body))])
    assert len(finished) == 1
    if finished[0].failed:
        assert json.loads(finished[0].line)["response"]["status_code"] == 400


def test_what_a_chat_asks_for_is_understood() -> None:
    request = request_of(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "He"}, {"type": "text", "text": "y"}],
                },
                {"role": "assistant", "content": "Hm?"},
            ],
            "max_completion_tokens": 9,
            "temperature": 0,
            "top_p": 0.5,
            "seed": 11,
            "stop": "end",
            "n": 1,
            "response_format": {"type": "text"},
            "logprobs": False,
            "user": "someone",
            "metadata": {"any": "thing"},
            "store": False,
        }
    )
    assert request.prompts[0].messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hey"},
        {"role": "assistant", "content": "Hm?"},
    )
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (9, 0, 0.5)
    assert (sampling.seed, sampling.stop) == (11, ("end",))


def test_what_a_completion_asks_for_is_understood() -> None:
    text = request_of({"prompt": "Once"}, COMPLETIONS)
    ids = request_of({"prompt": [1, 2], "max_tokens": 3}, COMPLETIONS)
    assert (text.prompts[0].text, text.sampling.max_tokens) == ("Once", 16)
    assert (ids.prompts[0].token_ids, ids.sampling.max_tokens) == ((1, 2), 3)


def test_a_line_without_a_seed_has_one_of_its_own_that_a_rerun_repeats() -> None:
    lease = lease_for()
    seeds = [default_seed(lease, idx) for idx in range(100)]
    assert len(set(seeds)) == 100
    assert seeds == [default_seed(lease, idx) for idx in range(100)]
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_the_field_named_in_a_refusal_is_the_same_in_every_process() -> None:
    code = (
        "from test_line_bodies import *\n"
        "body = {'messages': HELLO, **{f'field_{n}': n for n in range(20)}}\n"
        "print(refusal_of(body).param)"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": str(seed), "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (1, 2)
    }
    assert told == {"field_0\n"}


def test_an_answer_has_no_trace_of_when_and_where_it_was_made() -> None:
    lease = lease_for()
    items = [ItemInput(n, f"line-{n}", line_of({"messages": HELLO, "seed": n})) for n in range(3)]
    first, second = answers(lease, items), answers(lease, items[::-1])
    assert {item.idx: item.line for item in first} == {item.idx: item.line for item in second}


def test_nul_and_odd_letters_travel_through() -> None:
    odd = "\0\u2028\ufffe\U0001f388"
    body = {"messages": [{"role": "user", "content": odd}]}
    (item,) = answers(lease_for(), [ItemInput(0, 'a"\\é', line_of(body))])
    assert not item.failed
    assert json.loads(item.line)["custom_id"] == 'a"\\é'
    assert item.line.count(b"\n") == 1
