"""The tools of a response in the form of a chat's: a function's fields stand one level deeper."""

from collections.abc import Sequence
from typing import Any

from runner.inference.bodies import BadBody

_FUNCTION = "function"


def chat_tools(tools: Sequence[Any] | None) -> list[Any] | None:
    """The tools, for the chat's reader to check.

    A function is strict unless it says otherwise: the contract's default, unlike that of a chat.

    Raises:
        BadBody: one is no function.
    """
    if tools is None:
        return None
    found = []
    for number, tool in enumerate(tools):
        wrapped = _wrapped(tool, f"tools[{number}]")
        if isinstance(wrapped, dict) and isinstance(wrapped.get(_FUNCTION), dict):
            wrapped[_FUNCTION].setdefault("strict", True)
        found.append(wrapped)
    return found


def chat_choice(choice: object) -> Any:  # noqa: ANN401 - as the chat's own field
    """The choice of a tool, for the chat's reader to check.

    Raises:
        BadBody: it names what is no function.
    """
    return _wrapped(choice, "tool_choice")


def _wrapped(value: object, where: str) -> Any:  # noqa: ANN401 - any JSON, still unchecked
    """What names or defines a function, its fields moved below ``function``."""
    if not isinstance(value, dict):
        return value
    kind = value.get("type")
    if isinstance(kind, str) and kind != _FUNCTION:
        raise BadBody(
            f"The type {kind[:32]!r} is not supported; only functions are.",
            f"{where}.type",
            "unsupported_value",
        )
    if _FUNCTION in value:
        raise BadBody(
            "A response has the fields of a function beside its type, not below function.",
            f"{where}.function",
        )
    # The official client's own objects hold null where nothing is said.
    inner = {name: field for name, field in value.items() if name != "type" and field is not None}
    outer = {"type": value["type"]} if "type" in value else {}
    return {**outer, _FUNCTION: inner}
