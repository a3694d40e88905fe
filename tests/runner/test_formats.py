"""Formats, tools and tool messages on the wire: what is understood, and what is refused where."""

import pytest
from test_line_bodies import COMPLETIONS, HELLO, refusal_of, request_of

from runner.inference.bodies import BadBody
from runner.inference.formats import OutputFormat
from runner.inference.tools import MAX_TOOLS, ToolUse

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{"type":"string"},"a":{}}}'


def named(**changes: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, **changes}}


def function(**changes: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **changes}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        (
            {"response_format": named(strict=True, description="d")},
            OutputFormat("json_schema", SCHEMA_TEXT, "response_format"),
        ),
        (
            {"response_format": {"type": "json_object"}},
            OutputFormat("json_schema", '{"type":"object"}', "response_format"),
        ),
        ({"guided_json": SCHEMA}, OutputFormat("json_schema", SCHEMA_TEXT, "guided_json")),
        ({"guided_json": SCHEMA_TEXT}, OutputFormat("json_schema", SCHEMA_TEXT, "guided_json")),
        ({"guided_regex": "a+"}, OutputFormat("regex", "a+", "guided_regex")),
        (
            {"guided_choice": ["a", "\u00e9"]},
            OutputFormat("choice", '["a","\u00e9"]', "guided_choice"),
        ),
        (
            {"structured_outputs": {"choice": ["a"]}},
            OutputFormat("choice", '["a"]', "structured_outputs"),
        ),
    ],
)
def test_a_form_is_understood_in_either_way_of_asking(
    fields: dict[str, object], expected: OutputFormat | None
) -> None:
    assert request_of({"messages": HELLO, **fields}).format == expected
    if "response_format" not in fields:
        assert request_of({"prompt": "x", **fields}, COMPLETIONS).format == expected


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {}}, "response_format", "invalid_type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", None),
        ({"response_format": named(schema=None)}, "response_format.json_schema.schema", None),
        ({"response_format": named(name="a b")}, "response_format.json_schema.name", None),
        ({"response_format": named(strict="yes")}, "response_format.json_schema.strict", None),
        ({"response_format": named(styles=1)}, "response_format.json_schema", None),
        ({"response_format": {**named(), "type": "text"}}, "response_format.json_schema", None),
        ({"response_format": named(), "guided_regex": "a"}, "guided_regex", "invalid_value"),
        ({"guided_json": "{"}, "guided_json", "invalid_json_schema"),
        ({"guided_json": "[" * 900 + "]" * 900}, "guided_json", "invalid_json_schema"),
        ({"guided_json": 7}, "guided_json", "invalid_json_schema"),
        ({"guided_regex": ""}, "guided_regex", "invalid_value"),
        ({"guided_choice": []}, "guided_choice", "invalid_value"),
        ({"guided_choice": [1]}, "guided_choice[0]", "invalid_type"),
        ({"guided_grammar": "x"}, "guided_grammar", "unsupported_value"),
        ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs", "invalid_type"),
        ({"tools": [7]}, "tools[0]", "invalid_type"),
        ({"tools": [function(), {"type": "function"}]}, "tools[1]", "invalid_type"),
        ({"tools": [{**function(), "type": "search"}]}, "tools[0].type", "invalid_value"),
        ({"tools": [function(name="a b")]}, "tools[0].function.name", "invalid_value"),
        ({"tools": [function(), function()]}, "tools[1].function.name", "invalid_value"),
        ({"tools": [function(parameters=[])]}, "tools[0].function.parameters", "invalid_type"),
        (
            {"tools": [function(parameters={"type": "string"})]},
            "tools[0].function.parameters",
            "invalid_json_schema",
        ),
        ({"tools": [function(strict=1)]}, "tools[0].function.strict", "invalid_type"),
        ({"tools": [function(title="x")]}, "tools[0].function", "invalid_type"),
        ({"tools": [function(name=f"f{i}") for i in range(MAX_TOOLS + 1)]}, "tools", None),
        ({"tool_choice": "required"}, "tool_choice", "invalid_value"),
        ({"tools": [function()], "tool_choice": "always"}, "tool_choice", "invalid_value"),
        (
            {"tools": [function()], "tool_choice": function(name="g")},
            "tool_choice.function.name",
            "invalid_value",
        ),
        (
            {"tools": [function()], "tool_choice": {"type": "allowed_tools"}},
            "tool_choice",
            "invalid_type",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(
    fields: dict[str, object], param: str, code: str | None
) -> None:
    refusal = refusal_of({"messages": HELLO, **fields})
    assert refusal.param == param
    assert code in (None, refusal.code)
    assert refusal.message.endswith(".")


def test_a_form_beside_tools_is_refused_unless_the_tools_are_ruled_out() -> None:
    both: dict[str, object] = {
        "messages": HELLO,
        "tools": [function()],
        "response_format": named(),
    }
    with pytest.raises(BadBody, match="not supported beside tools") as caught:
        request_of(both)
    assert (caught.value.param, caught.value.code) == ("response_format", "unsupported_value")
    ruled_out = request_of({**both, "tool_choice": "none"})
    assert ruled_out.format is not None
    assert ruled_out.tools is None


def test_the_stub_refuses_forms_and_calls_by_name() -> None:
    for fields, param in (
        ({"response_format": named()}, "response_format"),
        ({"guided_choice": ["a"]}, "guided_choice"),
        ({"tools": [function()]}, "tools"),
    ):
        refusal = refusal_of({"messages": HELLO, **fields})
        assert (refusal.param, refusal.code) == (param, "unsupported_value")


def tool_use(**fields: object) -> ToolUse | None:
    tools = [function(description="adds"), function(name="g", strict=True, parameters=SCHEMA)]
    return request_of({"messages": HELLO, "tools": tools, **fields}).tools


def tools_of(**fields: object) -> ToolUse:
    use = tool_use(**fields)
    assert use is not None
    return use


def test_what_is_asked_of_tools_is_understood() -> None:
    auto = tools_of()
    assert [tool.name for tool in auto.tools] == ["f", "g"]
    assert auto.tools[0].written == {
        "type": "function",
        "function": {
            "name": "f",
            "description": "adds",
            "parameters": {"type": "object", "properties": {}},
        },
    }
    assert auto.tools[1].parameters == SCHEMA_TEXT
    assert [tool.is_strict for tool in auto.tools] == [False, True]
    assert (auto.must_call, auto.only, auto.is_parallel) == (False, None, True)
    assert tool_use(tool_choice="none") is None
    assert tools_of(tool_choice="required").must_call
    only = tools_of(tool_choice={"type": "function", "function": {"name": "g"}})
    assert (only.must_call, only.only, only.is_parallel) == (True, 1, False)
    assert not tools_of(parallel_tool_calls=False).is_parallel
    free = request_of({"messages": HELLO, "tools": [function()]}).tools
    assert free is not None
    assert not free.needs_grammar
    assert auto.needs_grammar


CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def test_calls_and_their_answers_are_understood_as_messages() -> None:
    messages = [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "2"}]},
    ]
    assert request_of({"messages": messages}).prompts[0].messages == (
        HELLO[0],
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "f", "arguments": {"a": 1}},
                }
            ],
        },
        {"role": "tool", "content": "2", "tool_call_id": "call_1", "name": "f"},
    )


def calling(**changes: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{**CALL, **changes}]}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "tool", "content": "x"}, "messages[1].tool_call_id"),
        ({"role": "tool", "content": "x", "tool_call_id": "no"}, "messages[1].tool_call_id"),
        ({"role": "assistant", "tool_calls": []}, "messages[1].content"),
        ({**calling(), "role": "user"}, "messages[1].tool_calls"),
        (calling(type="search"), "messages[1].tool_calls[0].type"),
        (
            calling(function={"name": "f", "arguments": "{"}),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            calling(function={"name": "f", "arguments": "[]"}),
            "messages[1].tool_calls[0].function.arguments",
        ),
    ],
)
def test_messages_of_tools_that_do_not_fit_are_refused(
    message: dict[str, object], param: str
) -> None:
    assert refusal_of({"messages": [*HELLO, message]}).param == param
