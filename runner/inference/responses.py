"""The body of a line of /v1/responses, as the chat that it stands for.

A response is a chat in other words: ``as_chat`` translates them, the chat's own reader checks what
both have, and the ``Words`` that come with the chat translate what it finds at fault back.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from runner.domain.truncation import Truncation
from runner.inference.bodies import BadBody, ChatBody, SamplingBody, read_body
from runner.inference.response_items import Conversation, Item
from runner.inference.response_tools import chat_choice, chat_tools
from runner.inference.response_words import Words

_LOGPROBS = "message.output_text.logprobs"
_TRUNCATIONS = {"auto": Truncation.KEEP_SYSTEM_AND_LAST, "disabled": Truncation.ERROR}


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


def as_chat(body: ResponsesBody) -> tuple[ChatBody, Words]:
    """The chat that a response stands for, and the words to tell its faults in.

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
    conversation = Conversation(body.instructions)
    conversation.read(body.input)
    chat = ChatBody(
        **{**shared, "truncate_prompt": _truncation(body)},
        messages=conversation.messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=tells_logprobs,
        top_logprobs=body.top_logprobs,
        response_format=chat_format(body.text),
        tools=chat_tools(body.tools),
        tool_choice=chat_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls,
    )
    return chat, Words(conversation.places)


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
        "tools": body.tools or [],
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
        "stream_options",
    ):
        if getattr(body, name):
            raise _unsupported(name)
    reasoning = body.reasoning
    if reasoning and not (isinstance(reasoning, dict) and not any(reasoning.values())):
        raise _unsupported("reasoning")
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
