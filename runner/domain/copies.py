"""The line of an output or error file that says again what an equal line was answered.

It has ids of its own wherever an answer has any, and tells in ``reused_from`` whose answer it is.
"""

from typing import Any

import msgspec

from runner.domain.answers import unbroken
from runner.domain.ids import call_id

_Fields = dict[str, msgspec.Raw]

_decoder = msgspec.json.Decoder(_Fields)
_encode = msgspec.json.encode


def copied_line(item_id: str, custom_id: str, source_id: str, line: bytes) -> bytes:
    """The line of an item that takes the answer of another.

    Args:
        item_id: its wire id, ``source_id`` that of the other.
        line: the other's line of its output or error file.
    """
    fields = _decoder.decode(line)
    copied: dict[str, object] = {**fields, "id": item_id, "custom_id": custom_id}
    response = msgspec.json.decode(fields["response"], type=_Fields | None)
    if response is not None:
        body = _copied_body(response["body"], source_id, item_id)
        copied["response"] = {**response, "request_id": item_id, "body": body}
    copied["reused_from"] = source_id
    return unbroken(_encode(copied)) + b"\n"


def _copied_body(body: msgspec.Raw, old: str, new: str) -> dict[str, object]:
    fields = _decoder.decode(body)
    copied: dict[str, object] = dict(fields)
    if "id" in fields:
        copied["id"] = _own(fields["id"], old, new)
    if "output" in fields:
        items = msgspec.json.decode(fields["output"], type=list[_Fields])
        copied["output"] = list(_copied_items(items, old, new))
    if "choices" in fields and b'"tool_calls"' in bytes(fields["choices"]):
        choices = msgspec.json.decode(fields["choices"], type=list[dict[str, Any]])
        for choice in choices:
            calls = choice.get("message", {}).get("tool_calls") or ()
            for number, call in enumerate(calls):
                call["id"] = call_id(new, choice["index"], number)
        copied["choices"] = choices
    return copied


def _copied_items(items: list[_Fields], old: str, new: str) -> Any:  # noqa: ANN401
    """The items of a response; its calls are numbered by themselves."""
    number = 0
    for item in items:
        copied: dict[str, object] = {**item, "id": _own(item["id"], old, new)}
        if "call_id" in item:
            copied["call_id"] = call_id(new, 0, number)
            number += 1
        yield copied


def _own(name: msgspec.Raw, old: str, new: str) -> str:
    """An id made of the line's id, made of another."""
    return str(msgspec.json.decode(name)).replace(old, new)
