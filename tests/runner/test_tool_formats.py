"""Tool calls as models write them: found, read and left alone; and the grammars that force them."""

import json

import pytest
from tiny_models import EOS_ID, byte_tokenizer

from engine.grammar import GrammarState, Vocabulary
from engine.grammar_compiler import GrammarCompiler, GrammarSource
from runner.inference.backend import ToolCall
from runner.inference.tool_formats import (
    Hermes,
    Llama3,
    Mistral,
    Said,
    ToolFormat,
    find_tool_format,
)
from runner.inference.tools import Tool, ToolUse

HERMES, LLAMA = Hermes(), Llama3()
LISTED, NAMED = Mistral(has_names_first=False), Mistral(has_names_first=True)
NAMES = frozenset({"get_weather", "add"})
WEATHER = ToolCall("get_weather", '{"city": "Köln </tool_call>"}')
ADD = ToolCall("add", '{"a": 1.50, "b": [2]}')
_weather = '{"name": "get_weather", "arguments": {"city": "Köln </tool_call>"}}'
_add = '{"name": "add", "arguments": {"a": 1.50, "b": [2]}}'


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        ("{% if tools %}<tool_call>{...}</tool_call>", Hermes),
        ("{% if tools %}<tool_call><function=f>", type(None)),
        ("{% if tools %}<tool_call>f<arg_key>", type(None)),
        ("{% if tools %}{'name': f, 'parameters': p} role ipython", Llama3),
        ("{% if tools %}<|python_tag|>", Llama3),
        ("{% if tools %}[TOOL_CALLS] [", Mistral),
        ("{% if tools %}something of its own", type(None)),
        ("{% for m in messages %}<tool_call>", type(None)),
        ("", type(None)),
    ],
)
def test_the_format_is_told_by_the_template(template: str, kind: type) -> None:
    assert type(find_tool_format(template)) is kind
    assert find_tool_format("{% if tools %}[TOOL_CALLS]f[ARGS]") == NAMED


@pytest.mark.parametrize(
    ("form", "text", "said"),
    [
        (HERMES, f"<tool_call>\n{_weather}\n</tool_call>", Said("", (WEATHER,))),
        (
            HERMES,
            f"I look. <tool_call>{_weather}</tool_call>\n<tool_call>\n{_add}\n</tool_call> Done.",
            Said("I look. \n Done.", (WEATHER, ADD)),
        ),
        (HERMES, f"<tool_call>\n{_add}", Said("", (ADD,))),
        (
            HERMES,
            f"<tool_call>{_add}</tool_call><tool_call>{{",
            Said("<tool_call>{", (ADD,)),
        ),
        (HERMES, '<tool_call>{"name": "add"}</tool_call>', Said("", (ToolCall("add", "{}"),))),
        (
            LLAMA,
            f"<|python_tag|>{_add.replace('arguments', 'parameters')}",
            Said("", (ADD,)),
        ),
        (
            LLAMA,
            " "
            + _add.replace("arguments", "parameters")
            + "; "
            + _weather.replace("arguments", "parameters"),
            Said("", (ADD, WEATHER)),
        ),
        (LISTED, f"[TOOL_CALLS] [{_weather}, {_add}]", Said("", (WEATHER, ADD))),
        (LISTED, f"So: [TOOL_CALLS][{_add}]\n", Said("So:", (ADD,))),
        (
            NAMED,
            "[TOOL_CALLS]get_weather[CALL_ID]abc[ARGS]"
            '{"city": "Köln </tool_call>"}[TOOL_CALLS]add[ARGS]{"a": 1.50, "b": [2]}',
            Said("", (WEATHER, ADD)),
        ),
    ],
)
def test_calls_are_taken_out_with_their_arguments_as_written(
    form: ToolFormat, text: str, said: Said
) -> None:
    assert form.read(text, NAMES) == said


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, "Nothing to call."),
        (HERMES, '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": "a"}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arg'),
        (HERMES, "<tool_call>" + "[" * 100_000),
        (LLAMA, '{"name": "add", "parameters": {}} and more'),
        (LLAMA, '{"answer": 42}'),
        (LLAMA, "  plain\n"),
        (LISTED, "[TOOL_CALLS] nothing"),
        (LISTED, '[TOOL_CALLS] [{"name": "add", "arguments": {}}, 7]'),
        (NAMED, "[TOOL_CALLS]add[ARGS]{"),
        (NAMED, "[TOOL_CALLS]unknown[ARGS]{}"),
    ],
)
def test_what_is_no_sound_call_of_an_offered_function_stays_text(
    form: ToolFormat, text: str
) -> None:
    assert form.read(text, NAMES) == Said(text)


def tool(name: str, schema: dict[str, object], is_strict: bool = False) -> Tool:
    return Tool(name, json.dumps(schema), is_strict, {})


CITY = tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/$defs/c"}},
        "required": ["city"],
        "additionalProperties": False,
        "$defs": {"c": {"enum": ["Bonn", "Köln"]}},
    },
)
SUM = tool("add", {"type": "object", "properties": {"a": {"type": "integer"}}})
TOKENIZER = byte_tokenizer()
TOKENIZER.add_special_tokens(["[TOOL_CALLS]", "[ARGS]"])
COMPILER = GrammarCompiler(
    lambda: Vocabulary(TOKENIZER.to_str(), TOKENIZER.get_vocab_size(), [EOS_ID]), max_seconds=90.0
)


def marker(text: str) -> str:
    token_id = TOKENIZER.token_to_id(text)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def follows(form: ToolFormat, use: ToolUse, text: str) -> str:
    """How far a text may go: `complete`, `open` (it may end or go on), `part` or `wrong`."""
    schemas = tuple(one.parameters for one in use.tools)
    grammar = COMPILER.compile(GrammarSource("lark", form.rules(use, marker), schemas))
    state: GrammarState = grammar.start()
    for token_id in TOKENIZER.encode(text, add_special_tokens=False).ids:
        state.accept(token_id)
    if state.fault is not None:
        return "wrong"
    if state.is_complete:
        return "complete"
    state.accept(EOS_ID)
    return "part" if state.fault else "open"


BONN = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
ONE = '{"name": "add", "arguments": {"a": 1}}'
PARIS = BONN.replace("Bonn", "Paris")
BONN_3, ONE_3 = (text.replace("arguments", "parameters") for text in (BONN, ONE))
MUST = ToolUse((CITY, SUM), must_call=True)
ONLY = ToolUse((CITY, SUM), must_call=True, only=1, is_parallel=False)
FREE = ToolUse((CITY, SUM), is_parallel=False)


@pytest.mark.parametrize(
    ("form", "use", "text", "end"),
    [
        (HERMES, MUST, f"<tool_call>\n{BONN}\n</tool_call>", "open"),
        (HERMES, MUST, f"<tool_call>\n{BONN}\n</tool_call>\n<tool_call>\n{ONE}", "part"),
        (HERMES, MUST, f"<tool_call>\n{PARIS}", "wrong"),
        (HERMES, MUST, "I", "wrong"),
        (HERMES, ONLY, f"<tool_call>\n{ONE}\n</tool_call>", "complete"),
        (HERMES, ONLY, f"<tool_call>\n{BONN}", "wrong"),
        (HERMES, FREE, "I <b>say</b> nothing", "open"),
        (HERMES, FREE, f"I look. <tool_call>\n{BONN}\n</tool_call>", "complete"),
        (HERMES, FREE, f"<tool_call>\n{BONN}\n</tool_call>\n<tool_call>", "wrong"),
        (HERMES, FREE, f"<tool_call>\n{PARIS}", "wrong"),
        (LLAMA, MUST, BONN_3, "complete"),
        (LLAMA, ONLY, BONN_3, "wrong"),
        (LLAMA, ONLY, ONE_3, "complete"),
        (LLAMA, FREE, ONE_3, "complete"),
        (LLAMA, FREE, "It is {cold}.", "open"),
        (LLAMA, FREE, '{"cold": 1}', "wrong"),
        (LISTED, MUST, f"[TOOL_CALLS] [{BONN}, {ONE}]", "complete"),
        (LISTED, ONLY, f"[TOOL_CALLS][{ONE}]", "complete"),
        (LISTED, ONLY, f"[TOOL_CALLS][{ONE}, ", "wrong"),
        (LISTED, FREE, f"Well. [TOOL_CALLS] [{BONN}]", "complete"),
        (LISTED, FREE, "Well.", "open"),
        (NAMED, MUST, '[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]get_weather[ARGS]{', "part"),
        (NAMED, ONLY, '[TOOL_CALLS]add[ARGS]{"a": 1}', "complete"),
        (NAMED, ONLY, "[TOOL_CALLS]get", "wrong"),
        (NAMED, FREE, 'Well. [TOOL_CALLS]add[ARGS]{"a": 1}', "complete"),
    ],
)
def test_the_grammar_of_each_format_keeps_what_the_choice_asks_for(
    form: ToolFormat, use: ToolUse, text: str, end: str
) -> None:
    assert follows(form, use, text) == end
    if end == "complete":
        assert form.read(text, use.names).calls
