"""The functions that a model may call in a line, and whether it must."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from runner.inference.bodies import BadBody, ChatBody, read_part
from runner.inference.sampling import require

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class Tool:
    """One function.

    Attributes:
        parameters: the JSON Schema of its arguments, an object, as JSON.
        is_strict: its arguments must fit the schema even where the model is free to call.
        written: as chat templates want it.
    """

    name: str
    parameters: str
    is_strict: bool
    written: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolUse:
    """What a line says of its tools.

    Attributes:
        tools: all of them; the template shows them all.
        must_call: an answer is nothing but calls.
        only: the index of the one function to call, exactly once; None where any may be.
        is_parallel: an answer may hold several calls.
    """

    tools: tuple[Tool, ...]
    must_call: bool = False
    only: int | None = None
    is_parallel: bool = True

    @property
    def names(self) -> frozenset[str]:
        return frozenset(tool.name for tool in self.tools)

    @property
    def needs_grammar(self) -> bool:
        """Whether more is asked than reading calls from free text."""
        return self.must_call or not self.is_parallel or any(t.is_strict for t in self.tools)


class _Function(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Tool(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _Function


class _NamedFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str


class _NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    function: _NamedFunction


def read_tools(body: ChatBody) -> ToolUse | None:
    """What a chat says of tools; None where it has none or rules them out.

    Raises:
        BadBody: a definition or the choice is wrong; the param says which.
    """
    require(len(body.tools or ()) <= MAX_TOOLS, f"tools holds at most {MAX_TOOLS} tools.", "tools")
    tools = tuple(_tool(number, item) for number, item in enumerate(body.tools or ()))
    names = [tool.name for tool in tools]
    for number, name in enumerate(names):
        require(
            name not in names[:number],
            f"The name {name!r} is in use by another tool.",
            f"tools[{number}].function.name",
        )
    must_call, only = _choice(body.tool_choice, names)
    if not tools or body.tool_choice == "none":
        return None
    is_parallel = body.parallel_tool_calls is not False and only is None
    return ToolUse(tools, must_call, only, is_parallel)


def _tool(number: int, item: object) -> Tool:
    where = f"tools[{number}]"
    tool = read_part(item, _Tool, where)
    require(tool.type == "function", 'type must be "function".', f"{where}.type")
    function = tool.function
    require(
        _NAME.fullmatch(function.name) is not None,
        "name has 1 to 64 letters, digits, underscores and dashes.",
        f"{where}.function.name",
    )
    schema = {"type": "object", **(function.parameters or {"properties": {}})}
    if schema["type"] != "object":
        raise BadBody(
            'The parameters of a function have the type "object".',
            f"{where}.function.parameters",
            "invalid_json_schema",
        )
    written = {
        "name": function.name,
        "description": function.description or "",
        "parameters": schema,
    }
    return Tool(
        name=function.name,
        parameters=msgspec.json.encode(schema).decode(),
        is_strict=bool(function.strict),
        written={"type": "function", "function": written},
    )


def _choice(choice: object, names: list[str]) -> tuple[bool, int | None]:
    """Whether a call must be made, and of which function."""
    param = "tool_choice"
    if choice in (None, "none", "auto"):
        return False, None
    require(bool(names), "tool_choice asks for a call, but there are no tools.", param)
    if choice == "required":
        return True, None
    if isinstance(choice, str):
        raise BadBody('tool_choice must be "none", "auto", "required", or name a function.', param)
    named = read_part(choice, _NamedChoice, param)
    require(named.type == "function", 'type must be "function".', f"{param}.type")
    name = named.function.name
    require(name in names, f"No tool is called {name[:64]!r}.", f"{param}.function.name")
    return True, names.index(name)
