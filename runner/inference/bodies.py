"""The bodies of lines as typed values, by the wire contract, and how they are read.

A field that the types do not know is refused by name: nothing is ignored in silence.
"""

import re
from typing import Any, TypeVar

import msgspec

_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


class BadBody(Exception):
    """A body that cannot be run, with the field at fault."""

    def __init__(self, message: str, param: str | None, code: str = "invalid_value") -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class TextPart(msgspec.Struct):
    """One part of a message's content; only text is understood."""

    type: str
    text: str | None = None


class CalledFunction(msgspec.Struct):
    """A function that an assistant called; ``arguments`` is JSON."""

    name: str
    arguments: str


class PastCall(msgspec.Struct):
    """One tool call of an assistant's message."""

    id: str
    function: CalledFunction
    type: str = "function"


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[PastCall] | None = None
    tool_call_id: str | None = None


class SamplingBody(msgspec.Struct):
    """Fields that the endpoints which generate share."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    truncate_prompt: str | None = None
    truncate_prompt_tokens: int | None = None
    guided_json: Any = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    structured_outputs: Any = None
    n: int | None = None
    stream: bool | None = None
    stream_options: Any = None
    user: str | None = None
    metadata: Any = None


class ChatBody(SamplingBody):
    """The body of /v1/chat/completions."""

    messages: list[Message] = msgspec.field(default_factory=list)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: Any = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    service_tier: str | None = None


class CompletionBody(SamplingBody):
    """The body of /v1/completions."""

    prompt: str | list[Any] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


_Body = TypeVar("_Body", bound=msgspec.Struct)
_Part = TypeVar("_Part", bound=msgspec.Struct)

_chat_decoder = msgspec.json.Decoder(ChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)
_CHAT_FIELDS = frozenset(ChatBody.__struct_fields__)
_COMPLETION_FIELDS = frozenset(CompletionBody.__struct_fields__)


def read_chat(body: msgspec.Raw) -> ChatBody:
    """Read the body of a chat.

    Raises:
        BadBody: it is no JSON object, a field is of the wrong type, or unknown.
    """
    return read_body(_chat_decoder, body, _CHAT_FIELDS)


def read_completion(body: msgspec.Raw) -> CompletionBody:
    """Read the body of a completion; raises as ``read_chat`` does."""
    return read_body(_completion_decoder, body, _COMPLETION_FIELDS)


def read_part(value: object, kind: type[_Part], param: str) -> _Part:
    """A field that came as any JSON, by its own type; ``param`` names it.

    Raises:
        BadBody: it does not have that type; the param leads to the place.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        where = _PATH.search(str(error))
        sentence = str(error)[: where.start()] if where else str(error)
        inside = where.group(1) if where else ""
        dot = "." if inside and not inside.startswith("[") else ""
        raise BadBody(f"{sentence}.", f"{param}{dot}{inside}", "invalid_type") from None


def read_body(
    decoder: "msgspec.json.Decoder[_Body]", body: msgspec.Raw, known: frozenset[str]
) -> _Body:
    """Read a body of any endpoint, whose type has the fields ``known``; raises as ``read_chat``."""
    try:
        value = decoder.decode(body)
        fields = _fields_decoder.decode(body)
    except msgspec.ValidationError as error:
        where = _PATH.search(str(error))
        sentence = str(error)[: where.start()] if where else str(error)
        raise BadBody(f"{sentence}.", where.group(1) if where else None, "invalid_type") from None
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBody(f"The body cannot be read: {error}.", None, "invalid_json") from None
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        name = unknown[:64]
        raise BadBody(f"The field {name!r} is not supported; remove it.", name, "unsupported_value")
    return value
