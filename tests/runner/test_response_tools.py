"""Functions in lines of /v1/responses: read as a chat's, told in the response's own words."""

import json
from typing import Any

import pytest
from contract import line_contract
from openai.types.responses import FunctionTool, Response, ResponseFunctionToolCall
from test_line_bodies import lease_for, refusal_of, request_of

from runner.domain.leases import LineMetrics
from runner.inference.answers import answer_body
from runner.inference.backend import Completion, Task, ToolCall

RESPONSES = "/v1/responses"
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    "strict": False,
}
STOP = {"type": "function", "name": "stop"}
USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a": 1}'}
GAVE = {"type": "function_call_output", "call_id": "c1", "output": "2"}


DOCUMENT = line_contract()


def without(item: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in item.items() if key != name}


@pytest.mark.parametrize(
    ("changes", "param", "code"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_value"),
        ({"tools": [ADD, {"type": "file_search"}]}, "tools[1].type", "unsupported_value"),
        ({"tools": [{**ADD, "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [STOP, ADD, STOP]}, "tools[2].name", "invalid_value"),
        (
            {"tools": [{**ADD, "parameters": {"type": "array"}}]},
            "tools[0].parameters",
            "invalid_json_schema",
        ),
        ({"tools": [{**ADD, "strict": 7}]}, "tools[0].strict", "invalid_type"),
        ({"tools": [{**ADD, "colour": 7}]}, "tools[0]", "invalid_type"),
        ({"tools": [without(ADD, "type")]}, "tools[0]", "invalid_type"),
        ({"tools": [{**ADD, "type": 7}]}, "tools[0].type", "invalid_type"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function", "invalid_value"),
        ({"tools": [7]}, "tools[0]", "invalid_type"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        (
            {"tools": [ADD], "tool_choice": {"type": "function", "name": "x"}},
            "tool_choice.name",
            "invalid_value",
        ),
        ({"tools": [ADD], "tool_choice": {"type": "function"}}, "tool_choice", "invalid_type"),
        (
            {"tools": [ADD], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice.type",
            "unsupported_value",
        ),
        (
            {"tools": [ADD], "text": {"format": {"type": "json_object"}}},
            "text.format",
            "unsupported_value",
        ),
        ({"input": [USER, {**CALL, "arguments": "{"}]}, "input[1].arguments", "invalid_value"),
        ({"input": [USER, CALL, {**CALL, "arguments": "[]"}]}, "input[2].arguments", None),
        ({"input": [USER, without(CALL, "call_id")]}, "input[1].call_id", "invalid_value"),
        ({"input": [USER, without(CALL, "name")]}, "input[1].name", "invalid_value"),
        ({"input": [USER, without(CALL, "arguments")]}, "input[1].arguments", "invalid_value"),
        ({"input": [USER, {**CALL, "namespace": "n"}]}, "input[1].namespace", "unsupported_value"),
        ({"input": [GAVE, CALL]}, "input[0].call_id", "invalid_value"),
        ({"input": [CALL, without(GAVE, "output")]}, "input[1].output", "invalid_value"),
        (
            {"input": [CALL, {**GAVE, "output": [{"type": "input_image"}]}]},
            "input[1].output[0].type",
            "unsupported_value",
        ),
    ],
)
def test_a_tool_that_cannot_be_had_is_refused_in_the_words_of_a_response(
    changes: dict[str, object], param: str, code: str | None
) -> None:
    refusal = refusal_of({"input": "Hello", "instructions": "Be kind.", **changes}, RESPONSES)
    assert (refusal.param, refusal.code) == (param, code or "invalid_value")
    for word in ("messages", "tool_calls", "tool_call_id", "response_format"):
        assert word not in refusal.message


def test_tools_and_choice_are_those_of_a_chat() -> None:
    functions = [
        {"type": "function", "function": {**without(ADD, "type"), "strict": False}},
        {"type": "function", "function": {"name": "stop", "strict": True}},
    ]
    messages = [{"role": "user", "content": "Hello"}]
    for ours, theirs in (
        ("none", "none"),
        ("auto", "auto"),
        ("required", "required"),
        (None, None),
        (
            {"type": "function", "name": "add"},
            {"type": "function", "function": {"name": "add"}},
        ),
    ):
        for is_parallel in (True, False):
            both = {"parallel_tool_calls": is_parallel}
            response = request_of(
                {"input": "Hello", "tools": [ADD, STOP], "tool_choice": ours, **both}, RESPONSES
            )
            chat = request_of(
                {"messages": messages, "tools": functions, "tool_choice": theirs, **both}
            )
            assert response.tools == chat.tools
            assert (response.tools is None) == (ours == "none")


def test_a_tool_of_the_official_client_is_taken_with_its_empty_fields() -> None:
    tool = FunctionTool(type="function", name="add", parameters=None, strict=None).model_dump()
    use = request_of({"input": "Hello", "tools": [tool]}, RESPONSES).tools
    assert use is not None
    assert [(one.name, one.is_strict) for one in use.tools] == [("add", True)]


def test_calls_join_what_was_said_before_them_and_outputs_answer_them() -> None:
    items = [
        USER,
        {"role": "assistant", "content": "I add."},
        {**CALL, "id": "fc_1", "status": "completed"},
        {**CALL, "call_id": "c2"},
        {**GAVE, "call_id": "c2", "output": [{"type": "input_text", "text": "3"}]},
        GAVE,
        {**CALL, "call_id": "c3", "arguments": ""},
        {**GAVE, "call_id": "c3", "output": ""},
    ]

    def call(name: str, arguments: str) -> dict[str, object]:
        return {"id": name, "type": "function", "function": {"name": "add", "arguments": arguments}}

    chat = [
        USER,
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [call("c1", '{"a": 1}'), call("c2", '{"a": 1}')],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "3"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "assistant", "tool_calls": [call("c3", "{}")]},
        {"role": "tool", "tool_call_id": "c3", "content": ""},
    ]
    read = request_of({"input": items}, RESPONSES).prompts
    assert read == request_of({"messages": chat}).prompts


def answer(completion: Completion, **body: object) -> dict[str, Any]:
    """The answer to a line with tools, of which the stub has none."""
    request = request_of({"input": "Hello", "tools": [ADD, STOP], **body}, RESPONSES)
    lease = lease_for(RESPONSES)
    task = Task("k", lease, 3, "a", request, ((1, 2),))
    metrics = LineMetrics(prompt_tokens=2, output_tokens=5)
    text = answer_body(task, [completion], metrics)
    assert answer_body(task, [completion], metrics) == text
    whole: dict[str, Any] = json.loads(text)
    assert DOCUMENT.faults("ResponseObject", whole) == []
    return whole


ADDED, STOPPED = ToolCall("add", '{"a":  1}'), ToolCall("stop", "{}")


def test_calls_stand_beside_the_message_or_instead_of_it() -> None:
    choice = {"type": "function", "name": "add"}
    told = answer(Completion("", "tool_calls", tool_calls=(ADDED, STOPPED)), tool_choice=choice)
    response = Response.model_validate(told)
    assert (response.status, response.incomplete_details) == ("completed", None)
    first, second = response.output
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert (first.name, first.arguments, first.status) == ("add", '{"a":  1}', "completed")
    assert (second.name, second.arguments) == ("stop", "{}")
    assert first.id is not None
    assert second.id is not None
    assert first.id.startswith("fc_")
    assert first.call_id.startswith("call_")
    assert len({first.id, second.id}) == len({first.call_id, second.call_id}) == 2
    assert told["tools"] == [ADD, STOP]
    assert told["tool_choice"] == choice
    beside = Response.model_validate(answer(Completion("So:", "tool_calls", tool_calls=(ADDED,))))
    assert [item.type for item in beside.output] == ["message", "function_call"]
    assert beside.output_text == "So:"
    assert (beside.tool_choice, beside.parallel_tool_calls) == ("auto", True)


def test_a_call_before_the_end_of_the_tokens_is_whole_and_the_response_is_not() -> None:
    cut = answer(Completion("", "length", tool_calls=(ADDED,)), parallel_tool_calls=False)
    response = Response.model_validate(cut)
    assert response.status == "incomplete"
    assert [(item.type, item.status) for item in response.output] == [  # type: ignore[union-attr]
        ("function_call", "completed")
    ]
    assert response.parallel_tool_calls is False
