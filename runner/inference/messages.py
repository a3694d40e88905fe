"""The messages of a chat as chat templates want them."""

from collections.abc import Sequence
from typing import Any

from runner.domain.sound_json import UnsoundJson, read_json
from runner.inference.bodies import BadBody, Message, PastCall

_ROLES = ("system", "user", "assistant", "tool")


def read_messages(messages: Sequence[Message]) -> tuple[dict[str, Any], ...]:
    """All messages, with texts in one piece and arguments of calls as objects.

    Raises:
        BadBody: a message is not as its role wants it; the param says which.
    """
    called: dict[str, str] = {}  # the function of each call so far, by the call's id
    read = []
    for number, item in enumerate(messages):
        where = f"messages[{number}]"
        message = _message(item, where)
        if item.tool_calls:
            message["tool_calls"] = _calls(item, called, where)
        if message["role"] == "tool":
            message |= _answered(item, called, where)
        read.append(message)
    return tuple(read)


def _message(item: Message, where: str) -> dict[str, Any]:
    role = "system" if item.role == "developer" else item.role
    if role not in _ROLES:
        raise BadBody(f"The role {item.role[:32]!r} is not supported.", f"{where}.role")
    if item.content is None and not item.tool_calls:
        raise BadBody("The message has no content.", f"{where}.content")
    return {"role": role, "content": _text(item, where)}


def _text(item: Message, where: str) -> str:
    if item.content is None:
        return ""
    if isinstance(item.content, str):
        return item.content
    texts = []
    for part in item.content:
        if part.type != "text" or part.text is None:
            raise BadBody("Only parts of type text are supported.", f"{where}.content")
        texts.append(part.text)
    return "".join(texts)


def _calls(item: Message, called: dict[str, str], where: str) -> list[dict[str, Any]]:
    if item.role != "assistant":
        raise BadBody("Only an assistant calls tools.", f"{where}.tool_calls")
    calls = []
    for number, call in enumerate(item.tool_calls or ()):
        place = f"{where}.tool_calls[{number}]"
        if call.type != "function":
            raise BadBody('type must be "function".', f"{place}.type")
        called[call.id] = call.function.name
        function = {"name": call.function.name, "arguments": _arguments(call, place)}
        calls.append({"id": call.id, "type": "function", "function": function})
    return calls


def _arguments(call: PastCall, place: str) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so they get the object."""
    param = f"{place}.function.arguments"
    try:
        arguments = read_json(call.function.arguments.encode() or b"{}")
    except UnsoundJson as error:
        raise BadBody(f"The text of arguments {error}.", param) from None
    if not isinstance(arguments, dict):
        raise BadBody("arguments must be a JSON object, written as a string.", param)
    return arguments


def _answered(item: Message, called: dict[str, str], where: str) -> dict[str, Any]:
    """The call that a tool's message answers."""
    if item.tool_call_id not in called:
        raise BadBody(
            "A tool's message has the tool_call_id of a call in an earlier message.",
            f"{where}.tool_call_id",
        )
    return {"tool_call_id": item.tool_call_id, "name": called[item.tool_call_id]}
