"""The body of a line as a typed request. What cannot be honoured is refused by name, not ignored.

The types follow the wire contract of /v1/chat/completions and /v1/completions.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any

import msgspec

from runner.domain.leases import Lease
from runner.domain.lines import Line

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
_COMPLETIONS_MAX_TOKENS = 16  # the contract's default
_MAX_STOPS, _MAX_STOP_LETTERS = 16, 64


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


class Message(msgspec.Struct):
    """One message of a conversation."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None


class _Sampling(msgspec.Struct):
    """Fields that both endpoints share; those after ``ignore_eos`` are only ever refused."""

    model: str
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    n: int | None = None
    user: str | None = None
    metadata: Any = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream_options: Any = None


class ChatBody(_Sampling):
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


class CompletionBody(_Sampling):
    """The body of /v1/completions."""

    prompt: str | list[Any] | None = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to continue. Exactly one of the three is set."""

    messages: tuple[dict[str, str], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LineRequest:
    """What a line asks of a model."""

    endpoint: str
    model: str
    prompt: Prompt
    max_tokens: int | None  # None: as many as the context has room for
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool


_line_decoder = msgspec.json.Decoder(Line)
_chat_decoder = msgspec.json.Decoder(ChatBody)
_completion_decoder = msgspec.json.Decoder(CompletionBody)
_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_CHAT_FIELDS = frozenset(ChatBody.__struct_fields__)
_COMPLETION_FIELDS = frozenset(CompletionBody.__struct_fields__)
_PATH = re.compile(r" - at `\$\.?([^`]*)`$")


def parse_request(data: bytes, lease: Lease, idx: int) -> LineRequest:
    """Read a line's body.

    Raises:
        BadBody: a field is missing, of the wrong type, or asks for what is not offered.
    """
    body = lease.defaults.under(_line_decoder.decode(data).body)
    if lease.endpoint == CHAT:
        return _chat_request(_decode(_chat_decoder, body, _CHAT_FIELDS), lease, idx)
    return _completion_request(_decode(_completion_decoder, body, _COMPLETION_FIELDS), lease, idx)


def default_seed(lease: Lease, idx: int) -> int:
    """The seed of a line that names none: the same in each rerun of this job."""
    digest = hashlib.blake2b(lease.key.job_id.bytes + idx.to_bytes(8), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _decode(decoder: Any, body: msgspec.Raw, known: frozenset[str]) -> Any:  # noqa: ANN401
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


def _chat_request(body: ChatBody, lease: Lease, idx: int) -> LineRequest:
    _refuse_unsupported(body)
    kind = body.response_format.get("type") if isinstance(body.response_format, dict) else None
    _refuse_unless(body.response_format is None or kind == "text", "response_format")
    _refuse_unless(not body.logprobs and not body.top_logprobs, "logprobs")
    _refuse_unless(not body.tools, "tools")
    _refuse_unless(body.tool_choice in (None, "none", "auto"), "tool_choice")
    if not body.messages:
        raise BadBody("messages must hold at least one message.", "messages", "invalid_value")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise BadBody("Give max_completion_tokens or max_tokens, not both.", "max_tokens")
    limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    messages = tuple(_message(number, item) for number, item in enumerate(body.messages))
    return _request(body, Prompt(messages=messages), limit, lease, idx)


def _completion_request(body: CompletionBody, lease: Lease, idx: int) -> LineRequest:
    _refuse_unsupported(body)
    _refuse_unless(body.best_of in (None, 1), "best_of")
    _refuse_unless(not body.echo, "echo")
    _refuse_unless(body.logprobs is None, "logprobs")
    _refuse_unless(not body.suffix, "suffix")
    limit = _COMPLETIONS_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    if isinstance(body.prompt, str):
        return _request(body, Prompt(text=body.prompt), limit, lease, idx)
    if isinstance(body.prompt, list) and all(type(token) is int for token in body.prompt):
        return _request(body, Prompt(token_ids=tuple(body.prompt)), limit, lease, idx)
    raise BadBody("prompt must be one text or one list of token ids.", "prompt", "invalid_type")


def _request(
    body: _Sampling, prompt: Prompt, limit: int | None, lease: Lease, idx: int
) -> LineRequest:
    temperature = 1.0 if body.temperature is None else body.temperature
    _require(0 <= temperature <= 2, "temperature must be between 0 and 2.", "temperature")
    _require(limit is None or limit >= 1, "max_tokens must be at least 1.", "max_tokens")
    top_p = 1.0 if body.top_p is None else body.top_p
    _require(0 < top_p <= 1, "top_p must be above 0 and at most 1.", "top_p")
    top_k = body.top_k or 0
    _require(top_k >= 0, "top_k must not be negative; 0 is off.", "top_k")
    return LineRequest(
        endpoint=lease.endpoint,
        model=body.model,
        prompt=prompt,
        max_tokens=limit,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        seed=default_seed(lease, idx) if body.seed is None else body.seed,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
    )


def _message(number: int, item: Message) -> dict[str, str]:
    where = f"messages[{number}]"
    role = "system" if item.role == "developer" else item.role
    if role not in ("system", "user", "assistant"):
        raise BadBody(f"The role {item.role[:32]!r} is not supported.", f"{where}.role")
    if item.content is None:
        raise BadBody("The message has no content.", f"{where}.content")
    if isinstance(item.content, str):
        return {"role": role, "content": item.content}
    texts = []
    for part in item.content:
        if part.type != "text" or part.text is None:
            raise BadBody("Only parts of type text are supported.", f"{where}.content")
        texts.append(part.text)
    return {"role": role, "content": "".join(texts)}


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    _require(len(stops) <= _MAX_STOPS, f"stop has at most {_MAX_STOPS} strings.", "stop")
    _require(
        all(0 < len(text) <= _MAX_STOP_LETTERS for text in stops),
        f"Each stop string has 1 to {_MAX_STOP_LETTERS} characters.",
        "stop",
    )
    return stops


def _refuse_unsupported(body: _Sampling) -> None:
    _refuse_unless(body.n in (None, 1), "n")
    _refuse_unless(not body.frequency_penalty, "frequency_penalty")
    _refuse_unless(not body.presence_penalty, "presence_penalty")
    _refuse_unless(not body.logit_bias, "logit_bias")
    _refuse_unless(body.stream_options is None, "stream_options")


def _refuse_unless(fine: bool, param: str) -> None:
    if not fine:
        raise BadBody(f"{param} is not supported yet; remove it.", param, "unsupported_value")


def _require(fine: bool, message: str, param: str) -> None:
    if not fine:
        raise BadBody(message, param)
