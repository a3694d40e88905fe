"""The items of a response's input as the messages of a chat, with where each of them stands."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from runner.inference.bodies import BadBody, CalledFunction, Message, PastCall

_ROLES = ("user", "assistant", "system", "developer")
_SAID = ("input_text", "output_text")
_CALL, _OUTPUT = "function_call", "function_call_output"


class Part(msgspec.Struct):
    """One part of an item's content; only text is understood."""

    type: str
    text: str | None = None


class Item(msgspec.Struct):
    """One item of the input: a message, a call of a function, or what that call gave."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None
    namespace: Any = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a message of the chat stands in the body of the response, and each of its calls."""

    message: str
    calls: list[str] = field(default_factory=list)


class Conversation:
    """The messages of a chat, made of ``instructions`` and items, and their places."""

    def __init__(self, instructions: str | None) -> None:
        self.messages: list[Message] = []
        self.places: list[Place] = []
        self._call_ids: set[str] = set()
        if instructions is not None:
            self._add(Message("system", instructions), "instructions")

    def read(self, given: str | Sequence[Item] | None) -> None:
        """Add the input.

        Raises:
            BadBody: it is empty, or an item is not as its type wants it; the param says which.
        """
        if isinstance(given, str):
            self._add(Message("user", given), "input")
            return
        if not given:
            raise BadBody("input must be a text, or hold at least one item.", "input")
        for number, item in enumerate(given):
            self._read_item(item, f"input[{number}]")

    def _read_item(self, item: Item, where: str) -> None:
        if item.type == _CALL:
            self._call(item, where)
        elif item.type == _OUTPUT:
            self._add(self._output(item, where), where)
        elif item.type == "message":
            self._add(_message(item, where), where)
        else:
            raise BadBody(
                f"Items of type {item.type[:32]!r} are not supported.",
                f"{where}.type",
                "unsupported_value",
            )

    def _add(self, message: Message, where: str) -> None:
        self.messages.append(message)
        self.places.append(Place(where))

    def _call(self, item: Item, where: str) -> None:
        """Calls join what the assistant said before them: in a chat that is one message."""
        if item.namespace is not None:
            raise BadBody(
                "namespace is not supported; remove it.", f"{where}.namespace", "unsupported_value"
            )
        call_id = _needed(item.call_id, "call_id", where)
        name = _needed(item.name, "name", where)
        arguments = _needed(item.arguments, "arguments", where)
        if not self.messages or self.messages[-1].role != "assistant":
            self._add(Message("assistant"), where)
        message = self.messages[-1]
        call = PastCall(call_id, CalledFunction(name, arguments))
        message.tool_calls = [*(message.tool_calls or ()), call]
        self.places[-1].calls.append(where)
        self._call_ids.add(call_id)

    def _output(self, item: Item, where: str) -> Message:
        if item.call_id not in self._call_ids:
            raise BadBody(
                "An output has the call_id of a function_call that stands before it in input.",
                f"{where}.call_id",
            )
        return Message("tool", _text(item.output, "output", where), tool_call_id=item.call_id)


def _message(item: Item, where: str) -> Message:
    if item.role not in _ROLES:
        raise BadBody(f"role must be one of {', '.join(_ROLES)}.", f"{where}.role")
    return Message(item.role, _text(item.content, "content", where))


def _text(parts: str | list[Part] | None, name: str, where: str) -> str:
    if isinstance(parts, str):
        return parts
    if not parts:
        raise BadBody(f"The item has no {name}.", f"{where}.{name}")
    texts = []
    for number, part in enumerate(parts):
        if part.type not in _SAID or part.text is None:
            raise BadBody(
                f"Only parts of type {' and '.join(_SAID)} are supported.",
                f"{where}.{name}[{number}].type",
                "unsupported_value",
            )
        texts.append(part.text)
    return "".join(texts)


def _needed(text: str | None, name: str, where: str) -> str:
    if text is None:
        raise BadBody(f"The item has no {name}.", f"{where}.{name}")
    return text
