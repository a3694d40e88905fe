"""Forms and tools through the real engine with a tiny random model: all answers keep them."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from openai.types.chat import ChatCompletion
from test_line_bodies import COMPLETIONS, HELLO, lease_for, line_of
from test_sampling_fields import load_backend
from tiny_models import byte_tokenizer, save_model
from workshop import CHAT

from runner.domain.leases import ItemInput
from runner.inference.backend import LineRefusal
from runner.inference.local.backend import LocalBackend
from runner.worker.lines import finished_outcome

INTENTS = ["card_arrival", "card_linking", "exchange_rate", "lost_or_stolen_card"]
INTENT = {
    "type": "object",
    "properties": {"intent": {"enum": INTENTS}},
    "required": ["intent"],
    "additionalProperties": False,
}
SHOWN = (
    "{% if tools %}{{ tools | tojson }} call as CALL{% endif %}{% for m in messages %}"
    "[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls %}"
    "{{ c.id }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}[assistant]"
)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny models are slower with several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def folder_with(folder: Path, template: str, *special: str) -> Path:
    save_model(folder, max_position_embeddings=2048, vocab_size=516)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def hermes(tmp_path_factory: pytest.TempPathFactory) -> LocalBackend:
    template = SHOWN.replace("CALL", "<tool_call>{}</tool_call>")
    return load_backend(folder_with(tmp_path_factory.mktemp("hermes"), template))


@pytest.fixture
def local(hermes: LocalBackend) -> Iterator[LocalBackend]:
    yield hermes
    assert hermes.unfinished == 0
    assert hermes.stats()["kv_blocks_used"] == 0


def answers(
    backend: LocalBackend, bodies: list[dict[str, object]], endpoint: str = CHAT
) -> list[dict[str, Any]]:
    """The bodies of the answers of lines that run together."""
    for idx, body in enumerate(bodies):
        item = ItemInput(idx, "a", line_of({"max_tokens": 80, **body}, endpoint))
        backend.submit(backend.prepare(lease_for(endpoint), item))
    ended = {}
    while backend.unfinished:
        for outcome in backend.step():
            line = json.loads(finished_outcome(outcome).line)
            ended[outcome.task.idx] = line["response"]["body"]
    return [ended[idx] for idx in range(len(bodies))]


def refusal_of(backend: LocalBackend, body: dict[str, object]) -> LineRefusal:
    with pytest.raises(LineRefusal) as caught:
        backend.submit(backend.prepare(lease_for(), ItemInput(0, "a", line_of(body))))
    return caught.value


def schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}


def test_ten_lines_with_an_enum_are_all_valid(local: LocalBackend) -> None:
    bodies: list[dict[str, object]] = [
        {
            "messages": [{"role": "user", "content": f"Line {n}: where is my card?"}],
            "response_format": schema_format(INTENT),
            "temperature": n % 3,
            "seed": n,
            "max_tokens": 60,
        }
        for n in range(10)
    ]
    found = set()
    for answer in answers(local, bodies):
        (choice,) = answer["choices"]
        value = json.loads(choice["message"]["content"])
        assert list(value) == ["intent"]
        assert value["intent"] in INTENTS
        assert choice["finish_reason"] == "stop"
        found.add(value["intent"])
    assert len(found) > 1


def test_every_way_of_asking_for_a_form_is_kept(local: LocalBackend) -> None:
    asked: list[dict[str, object]] = [
        {"response_format": schema_format(INTENT), "n": 8, "temperature": 2, "seed": 1},
        {"response_format": {"type": "json_object"}, "max_tokens": 30, "logprobs": True},
        {"guided_choice": ["yes", "no"]},
        {"guided_regex": "[a-f]{4}-[0-9]{2}"},
        {"structured_outputs": {"json": {"type": "boolean"}}},
        {"response_format": schema_format({"type": "string", "minLength": 900}), "max_tokens": 7},
    ]
    intents, anything, choice, pattern, boolean, cut = (
        [one["message"]["content"] for one in answer["choices"]]
        if number != 5
        else answer["choices"]
        for number, answer in enumerate(
            answers(local, [{"messages": HELLO, **fields} for fields in asked])
        )
    )
    assert all(json.loads(text)["intent"] in INTENTS for text in intents)
    assert len(set(intents)) > 1
    assert anything[0].startswith("{")
    assert choice[0] in ("yes", "no")
    assert re.fullmatch("[a-f]{4}-[0-9]{2}", pattern[0])
    assert boolean[0] in ("true", "false")
    assert cut[0]["finish_reason"] == "length"
    (text,) = answers(local, [{"prompt": "x", "guided_choice": ["ab", "cd"]}], COMPLETIONS)
    assert text["choices"][0]["text"] in ("ab", "cd")


def test_a_form_that_cannot_be_kept_is_refused_for_its_line_only(local: LocalBackend) -> None:
    body: dict[str, object] = {"messages": HELLO}
    broken = refusal_of(local, {**body, "response_format": schema_format({"type": "wrong"})})
    assert (broken.status, broken.code, broken.param) == (
        400,
        "invalid_json_schema",
        "response_format",
    )
    assert broken.message == "The schema cannot be enforced: Invalid type: wrong."
    pattern = refusal_of(local, {**body, "guided_regex": "(("})
    assert (pattern.code, pattern.param) == ("invalid_value", "guided_regex")
    no_end = refusal_of(local, {**body, "guided_choice": ["a"], "ignore_eos": True})
    assert no_end.param == "ignore_eos"
    (fine,) = answers(local, [{**body, "guided_choice": ["fine"]}])
    assert fine["choices"][0]["message"]["content"] == "fine"


ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 22]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
STOP = {"type": "function", "function": {"name": "stop"}}


def test_forced_calls_come_as_tool_calls(local: LocalBackend) -> None:
    asked: dict[str, object] = {"messages": HELLO, "tools": [ADD, STOP], "temperature": 0}
    only = {"type": "function", "function": {"name": "add"}}
    one, any_of_them, free = answers(
        local,
        [
            {**asked, "tool_choice": only, "n": 2, "temperature": 1},
            {**asked, "tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300},
            {**asked, "max_tokens": 5},
        ],
    )
    ChatCompletion.model_validate(one, strict=True)
    ids = set()
    for choice in one["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"]["content"] is None
        (call,) = choice["message"]["tool_calls"]
        assert call["type"] == "function"
        assert call["function"]["name"] == "add"
        assert json.loads(call["function"]["arguments"])["a"] in (1, 22)
        ids.add(call["id"])
    assert len(ids) == 2
    (choice,) = any_of_them["choices"]
    assert choice["finish_reason"] in ("tool_calls", "length")
    assert choice["message"]["content"] is None or "<tool_call>" in choice["message"]["content"]
    (choice,) = free["choices"]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] in ("stop", "length")


def test_a_template_shows_tools_and_calls_unless_they_are_ruled_out(local: LocalBackend) -> None:
    def shown(body: dict[str, object]) -> str:
        task = local.prepare(lease_for(), ItemInput(0, "a", line_of(body)))
        return byte_tokenizer().decode(task.prompts[0], skip_special_tokens=False)

    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    text = shown({"messages": messages, "tools": [ADD]})
    assert '"name": "add"' in text
    assert text.endswith('[assistant]c1{"a": 1}[tool]2c1[assistant]')
    ruled_out = shown({"messages": messages, "tools": [ADD], "tool_choice": "none"})
    assert ruled_out == "[user]Hello" + text.partition("[user]Hello")[2]


def test_tools_are_refused_where_they_cannot_be_honoured(
    local: LocalBackend, tmp_path: Path
) -> None:
    bad = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}
    asked: dict[str, object] = {"messages": HELLO, "tools": [ADD, bad], "tool_choice": "required"}
    refusal = refusal_of(local, asked)
    assert refusal.code == "invalid_json_schema"
    assert refusal.param == "tools[1].function.parameters"
    plain = load_backend(
        folder_with(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    assert refusal_of(plain, {"messages": HELLO, "tools": [ADD]}).param == "tools"
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    history = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    assert refusal_of(plain, {"messages": history}).param == "messages[1]"


def test_markers_that_are_special_tokens_are_written_and_read(tmp_path: Path) -> None:
    template = SHOWN.replace("CALL", "[TOOL_CALLS]")
    mistral = load_backend(folder_with(tmp_path, template, "[TOOL_CALLS]"))
    call = {"id": "call_of_another_kind", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        *HELLO,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_of_another_kind", "content": "2"},
    ]
    body: dict[str, object] = {"messages": messages, "tools": [ADD], "tool_choice": "required"}
    body["parallel_tool_calls"] = False
    task = mistral.prepare(lease_for(), ItemInput(0, "a", line_of(body)))
    text = byte_tokenizer().decode(task.prompts[0])
    short = re.search(r"\[assistant\]([0-9a-z]{9})\{\}\[tool\]2([0-9a-z]{9})\[assistant\]", text)
    assert short is not None
    assert short.group(1) == short.group(2)
    (answer,) = answers(mistral, [body])
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"
