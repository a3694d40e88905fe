"""Calls of functions through a tiny real model: told as the document says, given back as items."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from contract import line_contract
from openai.types.responses import Response, ResponseFunctionToolCall
from test_constraints import ADD, SHOWN, folder_with
from test_line_bodies import HELLO, lease_for, line_of
from test_sampling_fields import load_backend
from tiny_models import byte_tokenizer
from workshop import CHAT

from runner.domain.leases import ItemInput
from runner.inference.backend import LineRefusal
from runner.inference.local.backend import LocalBackend
from runner.worker.lines import finished_outcome

RESPONSES = "/v1/responses"
FLAT: dict[str, Any] = {"type": "function", **ADD["function"]}  # type: ignore[dict-item]
ONLY = {"type": "function", "name": "add"}
DOCUMENT = line_contract()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBackend]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    template = SHOWN.replace("CALL", "<tool_call>{}</tool_call>")
    yield load_backend(folder_with(tmp_path_factory.mktemp("hermes"), template))
    torch.set_num_threads(threads)


def output_line(backend: LocalBackend, endpoint: str, body: dict[str, object]) -> dict[str, Any]:
    item = ItemInput(0, "a", line_of(body, endpoint))
    backend.submit(backend.prepare(lease_for(endpoint), item))
    lines = []
    while backend.unfinished:
        lines += [finished_outcome(outcome).line for outcome in backend.step()]
    (text,) = lines
    whole: dict[str, Any] = json.loads(text)
    return whole


def refusal_of(backend: LocalBackend, body: dict[str, object]) -> LineRefusal:
    with pytest.raises(LineRefusal) as caught:
        backend.prepare(lease_for(RESPONSES), ItemInput(0, "a", line_of(body, RESPONSES)))
    return caught.value


def test_a_call_comes_as_an_item_and_goes_back_as_one(local: LocalBackend) -> None:
    asked = {"input": "Hello", "tools": [FLAT], "tool_choice": ONLY, "temperature": 0}
    line = output_line(local, RESPONSES, {**asked, "max_output_tokens": 80})
    assert DOCUMENT.faults("ResponseOutputLine", line) == []
    response = Response.model_validate(line["response"]["body"])
    assert response.status == "completed"
    (call,) = response.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)["a"] in (1, 22)) == ("add", True)
    again: dict[str, object] = {
        "tools": [FLAT],
        "input": [
            {"role": "user", "content": "Hello"},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "2"},
        ],
    }
    task = local.prepare(lease_for(RESPONSES), ItemInput(0, "a", line_of(again, RESPONSES)))
    text = byte_tokenizer().decode(task.prompts[0], skip_special_tokens=False)
    written = json.dumps(json.loads(call.arguments))
    end = f"[user]Hello[assistant]{call.call_id}{written}[tool]2{call.call_id}[assistant]"
    assert text.endswith(end)
    assert '"function": {"name": "add"' in text


def test_answers_with_calls_are_as_the_document_says(local: LocalBackend) -> None:
    chosen = {"type": "function", "function": {"name": "add"}}
    chat = {"messages": HELLO, "tools": [ADD], "tool_choice": chosen, "truncate_prompt_tokens": 450}
    line = output_line(local, CHAT, {**chat, "messages": [*HELLO * 40], "max_tokens": 80, "n": 2})
    body = line["response"]["body"]
    assert body["truncated_prompt_tokens"] > 0
    assert {choice["finish_reason"] for choice in body["choices"]} == {"tool_calls"}
    assert body["choices"][0]["message"]["content"] is None
    assert DOCUMENT.faults("ChatOutputLine", line) == []
    assert DOCUMENT.faults("OutputLine", line) == []
    del body["choices"][0]["message"]["tool_calls"][0]["function"]["name"]
    assert DOCUMENT.faults("ChatOutputLine", line) != []


def test_what_only_the_model_cannot_do_is_told_by_the_field_of_the_response(
    local: LocalBackend, tmp_path: Path
) -> None:
    bad = {"type": "function", "name": "f", "parameters": {"not": {}}}
    refusal = refusal_of(local, {"input": "Hello", "tools": [FLAT, bad]})
    assert (refusal.param, refusal.code) == ("tools[1].parameters", "invalid_json_schema")
    assert refusal_of(local, {"input": "Hello", "tools": [{**bad, "strict": None}]}).param == (
        "tools[0].parameters"
    )
    local.prepare(  # no schema is enforced where the model is free
        lease_for(RESPONSES),
        ItemInput(0, "a", line_of({"input": "x", "tools": [{**bad, "strict": False}]}, RESPONSES)),
    )
    plain = load_backend(
        folder_with(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    history = [{"role": "user", "content": "Hello"}, call]
    assert refusal_of(plain, {"instructions": "Be kind.", "input": history}).param == "input[1]"
    assert refusal_of(plain, {"input": "Hello", "tools": [FLAT]}).param == "tools"
