"""The body of a line of /v1/responses, as the chat that it stands for.

A response is a chat in other words: ``as_chat`` translates them, the chat's own reader checks what
both have, and ``in_our_words`` translates what it finds at fault back.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from runner.domain.truncation import Truncation
from runner.inference.bodies import BadBody, ChatBody, Message, SamplingBody, read_body

_ROLES = ("user", "assistant", "system", "developer")
_PARTS = ("input_text", "output_text")
_LOGPROBS = "message.output_text.logprobs"
_TRUNCATIONS = {"auto": Truncation.KEEP_SYSTEM_AND_LAST, "disabled": Truncation.ERROR}
FORMAT = "text.format"
_OUR_WORDS = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": FORMAT,
}


class Part(msgspec.Struct):
    """One part of an item's content; only text is understood."""

    type: str
    text: str | None = None


class Item(msgspec.Struct):
    """One item of the input; only messages are understood."""

    type: str = "message"
    role: str | None = None
    content: str | list[Part] | None = None


class ResponsesBody(SamplingBody):
    """The body of /v1/responses. The sampling fields that it has beyond the contract are vLLM's."""

    input: str | list[Item] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None
    truncation: str | None = None
    metadata: dict[str, str] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: Any = None
    tools: list[Any] | None = None
    background: bool | None = None
    previous_response_id: Any = None
    conversation: Any = None
    prompt: Any = None
    reasoning: Any = None
    max_tool_calls: Any = None


_decoder = msgspec.json.Decoder(ResponsesBody)
_FIELDS = frozenset(ResponsesBody.__struct_fields__)
_SHARED = frozenset(SamplingBody.__struct_fields__)


def read_responses(body: msgspec.Raw) -> ResponsesBody:
    """Read the body of a response; raises as ``read_chat`` does."""
    return read_body(_decoder, body, _FIELDS)


def as_chat(body: ResponsesBody) -> ChatBody:
    """The chat that a response stands for.

    Raises:
        BadBody: it asks for what a line of a batch can't have.
    """
    _refuse_what_cannot_be(body)
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise BadBody("max_output_tokens must be at least 1.", "max_output_tokens")
    shared = {name: getattr(body, name) for name in _SHARED}
    tells_logprobs = _LOGPROBS in (body.include or ())
    if body.top_logprobs and not tells_logprobs:
        raise BadBody(f"top_logprobs needs {_LOGPROBS!r} in include.", "top_logprobs")
    return ChatBody(
        **{**shared, "truncate_prompt": _truncation(body)},
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=tells_logprobs,
        top_logprobs=body.top_logprobs,
        response_format=chat_format(body.text),
    )


def chat_format(text: Mapping[str, Any] | None) -> Any:  # noqa: ANN401 - as the chat's own field
    """``text.format`` in the form of a chat's ``response_format``.

    Raises:
        BadBody: ``text`` holds something else.
    """
    settings = dict(text or {})
    wanted = settings.pop("format", None)
    if settings.pop("verbosity", None) not in (None, "medium"):
        raise _unsupported("text.verbosity")
    for name in settings:
        raise _unsupported(f"text.{name[:64]}")
    if isinstance(wanted, dict) and wanted.get("type") == "json_schema":
        schema = {name: value for name, value in wanted.items() if name != "type"}
        return {"type": "json_schema", "json_schema": schema}
    return wanted


def in_our_words(error: BadBody) -> BadBody:
    """A fault that was found in the chat, by the field of the response."""
    theirs = error.param or ""
    # A response's format has the schema's fields beside its type, a chat's one level below.
    field, _, inside = theirs.replace("response_format.json_schema", "response_format").partition(
        "."
    )
    ours = _OUR_WORDS.get(field)
    if ours is None:
        return error
    where = f"{ours}.{inside}" if inside else ours
    return BadBody(error.message.replace(theirs, where), where, error.code)


def repeated_fields(body: ResponsesBody) -> dict[str, Any]:
    """What the answer repeats of the request, in the contract's form."""
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "store": bool(body.store),
        "text": body.text or {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or "auto",
        "tools": [],
        "top_logprobs": body.top_logprobs or 0,
        "truncation": body.truncation or "disabled",
        "user": body.user,
    }


def _refuse_what_cannot_be(body: ResponsesBody) -> None:
    for name in (
        "background",
        "previous_response_id",
        "conversation",
        "prompt",
        "max_tool_calls",
        "tools",
        "stream_options",
    ):
        if getattr(body, name):
            raise _unsupported(name)
    reasoning = body.reasoning
    if reasoning and not (isinstance(reasoning, dict) and not any(reasoning.values())):
        raise _unsupported("reasoning")
    if body.tool_choice not in (None, "none", "auto"):
        raise _unsupported("tool_choice")
    if any(name != _LOGPROBS for name in body.include or ()):
        raise BadBody(f"include may hold only {_LOGPROBS!r}.", "include", "unsupported_value")
    if body.max_tokens is not None:
        raise BadBody("A response has max_output_tokens, not max_tokens.", "max_tokens")
    if body.n not in (None, 1):
        raise BadBody("A response has one answer; remove n.", "n", "unsupported_value")


def _unsupported(name: str) -> BadBody:
    return BadBody(f"{name} is not supported; remove it.", name, "unsupported_value")


def _truncation(body: ResponsesBody) -> str | None:
    if body.truncation is None:
        return body.truncate_prompt
    if body.truncation not in _TRUNCATIONS:
        raise BadBody("truncation must be auto or disabled.", "truncation")
    if body.truncate_prompt is not None:
        raise BadBody("Give truncation or truncate_prompt, not both.", "truncation")
    return _TRUNCATIONS[body.truncation].value


def _messages(body: ResponsesBody) -> list[Message]:
    before = [] if body.instructions is None else [Message("system", body.instructions)]
    if isinstance(body.input, str):
        return [*before, Message("user", body.input)]
    if not body.input:
        raise BadBody("input must be a text, or hold at least one item.", "input")
    return before + [_message(item, f"input[{number}]") for number, item in enumerate(body.input)]


def _message(item: Item, where: str) -> Message:
    if item.type != "message":
        raise BadBody(
            f"Items of type {item.type[:32]!r} are not supported.",
            f"{where}.type",
            "unsupported_value",
        )
    if item.role not in _ROLES:
        raise BadBody(f"role must be one of {', '.join(_ROLES)}.", f"{where}.role")
    if isinstance(item.content, str):
        return Message(item.role, item.content)
    if not item.content:
        raise BadBody("The message has no content.", f"{where}.content")
    texts = []
    for number, part in enumerate(item.content):
        if part.type not in _PARTS or part.text is None:
            raise BadBody(
                f"Only parts of type {' and '.join(_PARTS)} are supported.",
                f"{where}.content[{number}].type",
                "unsupported_value",
            )
        texts.append(part.text)
    return Message(item.role, "".join(texts))
