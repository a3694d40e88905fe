"""The body of a line as what it asks of a model. What cannot be honoured is refused by name."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from runner.domain.defaults import Defaults
from runner.domain.leases import Lease
from runner.domain.lines import Line
from runner.inference.bodies import (
    BadBody,
    ChatBody,
    CompletionBody,
    SamplingBody,
    read_chat,
    read_completion,
)
from runner.inference.embeddings import (
    MAX_INPUTS,
    EmbeddingOptions,
    EmbeddingsBody,
    embedding_options,
    read_embeddings,
)
from runner.inference.formats import OutputFormat, read_format
from runner.inference.messages import read_messages
from runner.inference.response_words import FORMAT, Words
from runner.inference.responses import ResponsesBody, as_chat, read_responses, repeated_fields
from runner.inference.sampling import MAX_LOGPROBS, Sampling, read_sampling, require
from runner.inference.tools import ToolUse, read_tools
from runner.inference.truncation import TruncationOptions, read_truncation

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
EMBEDDINGS, RESPONSES = "/v1/embeddings", "/v1/responses"
MAX_CHOICES = 64
"""Choices of one line, over all its prompts: they run at the same time."""
_COMPLETIONS_MAX_TOKENS = 16  # the contract's default


@dataclass(frozen=True, slots=True)
class Prompt:
    """What to continue. Exactly one of the three is set."""

    messages: tuple[dict[str, Any], ...] | None = None
    text: str | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class LineRequest:
    """What a line asks of a model: ``n`` choices for each of its prompts.

    ``echo`` wants each prompt's text in front of its choices. ``format`` is the form that each
    choice must have, ``tools`` what it may call; a line has one of them at most. With
    ``embedding`` a vector of each prompt is wanted instead of choices, and ``sampling`` has no
    use. ``repeated`` are the fields of its body that a response shows again, ``words`` those in
    which it is told of what is at fault in its chat.
    """

    endpoint: str
    model: str
    prompts: tuple[Prompt, ...]
    sampling: Sampling
    n: int = 1
    echo: bool = False
    format: OutputFormat | None = None
    tools: ToolUse | None = None
    truncation: TruncationOptions = TruncationOptions()
    embedding: EmbeddingOptions | None = None
    repeated: Mapping[str, Any] | None = None
    words: Words | None = None

    def told(self, error: BadBody) -> BadBody:
        """A fault that shows only at a model, by the field of this line's own body."""
        return error if self.words is None else self.words.of(error)


_line_decoder = msgspec.json.Decoder(Line)


def parse_request(data: bytes, lease: Lease, idx: int) -> LineRequest:
    """Read a line's body.

    Raises:
        BadBody: a field is missing, of the wrong type, or asks for what is not offered.
    """
    return read_request(data, lease.endpoint, lease.defaults, default_seed(lease, idx))


def read_request(data: bytes, endpoint: str, defaults: Defaults, seed: int) -> LineRequest:
    """Read a line's body, whoever holds the line; raises as ``parse_request`` does."""
    body = defaults.under(_line_decoder.decode(data).body)
    if endpoint == CHAT:
        return _chat_request(read_chat(body), seed)
    if endpoint == EMBEDDINGS:
        return _embeddings_request(read_embeddings(body), seed)
    if endpoint == RESPONSES:
        return _responses_request(read_responses(body), seed)
    return _completion_request(read_completion(body), seed)


_PROMPT_OF = {CHAT: "messages", COMPLETIONS: "prompt", EMBEDDINGS: "input", RESPONSES: "input"}


def wire_param(param: str, endpoint: str) -> str:
    """The field of a body that stands for one that an engine found at fault."""
    if param in ("prompt", "messages"):
        return _PROMPT_OF[endpoint]
    return param


def default_seed(lease: Lease, idx: int) -> int:
    """The seed of a line that names none: the same in each rerun of this job."""
    digest = hashlib.blake2b(lease.key.job_id.bytes + idx.to_bytes(8), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


def _chat_request(body: ChatBody, seed: int) -> LineRequest:
    _refuse_unless(body.stream_options is None, "stream_options")
    require(bool(body.messages), "messages must hold at least one message.", "messages")
    if body.max_tokens is not None and body.max_completion_tokens is not None:
        raise BadBody("Give max_completion_tokens or max_tokens, not both.", "max_tokens")
    limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    form, tools = read_format(body, body.response_format), read_tools(body)
    if form is not None and tools is not None:
        raise BadBody(
            f'{form.param} is not supported beside tools; set tool_choice to "none" or remove one.',
            form.param,
            "unsupported_value",
        )
    return LineRequest(
        endpoint=CHAT,
        model=body.model,
        prompts=(Prompt(messages=read_messages(body.messages)),),
        sampling=read_sampling(body, limit, _chat_logprobs(body), seed),
        n=_choices(body.n, num_prompts=1),
        truncation=read_truncation(body.truncate_prompt, body.truncate_prompt_tokens),
        format=form,
        tools=tools,
    )


def _chat_logprobs(body: ChatBody) -> int | None:
    """How many of the likeliest tokens to tell per token; None where none are asked for."""
    top = body.top_logprobs or 0
    _require_top(top, "top_logprobs")
    if not body.logprobs:
        require(not top, "top_logprobs needs logprobs to be true.", "top_logprobs")
        return None
    return top


def _completion_request(body: CompletionBody, seed: int) -> LineRequest:
    _refuse_unless(body.stream_options is None, "stream_options")
    _refuse_unless(not body.suffix, "suffix")
    prompts = _prompts(body.prompt, "prompt")
    n = _choices(body.n, len(prompts))
    if body.best_of not in (None, n):
        raise BadBody(
            "best_of is supported only where it equals n.", "best_of", "unsupported_value"
        )
    if body.logprobs is not None:
        _require_top(body.logprobs, "logprobs")
        if body.echo:
            raise BadBody(
                "echo is not supported with logprobs: those of a prompt are not computed.",
                "echo",
                "unsupported_value",
            )
    limit = _COMPLETIONS_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return LineRequest(
        endpoint=COMPLETIONS,
        model=body.model,
        prompts=prompts,
        sampling=read_sampling(body, limit, body.logprobs, seed),
        n=n,
        echo=bool(body.echo),
        truncation=read_truncation(body.truncate_prompt, body.truncate_prompt_tokens),
        format=read_format(body),
    )


def _responses_request(body: ResponsesBody, seed: int) -> LineRequest:
    chat, words = as_chat(body)
    try:
        request = _chat_request(chat, seed)
    except BadBody as error:
        raise words.of(error) from None
    form = request.format
    if form is not None and form.param == "response_format":
        form = replace(form, param=FORMAT)
    return replace(
        request, endpoint=RESPONSES, repeated=repeated_fields(body), format=form, words=words
    )


def _embeddings_request(body: EmbeddingsBody, seed: int) -> LineRequest:
    prompts = _prompts(body.input, "input")
    require(
        len(prompts) <= MAX_INPUTS, f"A line has at most {MAX_INPUTS:,} inputs; split it.", "input"
    )
    require(
        all(prompt.text or prompt.token_ids for prompt in prompts),
        "input holds an empty text or list; remove it.",
        "input",
    )
    return LineRequest(
        endpoint=EMBEDDINGS,
        model=body.model,
        prompts=prompts,
        sampling=read_sampling(SamplingBody(body.model), None, None, seed),
        truncation=read_truncation(body.truncate_prompt, body.truncate_prompt_tokens),
        embedding=embedding_options(body),
    )


def _prompts(prompt: object, param: str) -> tuple[Prompt, ...]:
    """One text, several, one list of token ids, or several."""
    if isinstance(prompt, str):
        return (Prompt(text=prompt),)
    if isinstance(prompt, list) and prompt:
        if all(type(token) is int for token in prompt):
            return (Prompt(token_ids=_ids(prompt)),)
        if all(isinstance(text, str) for text in prompt):
            return tuple(Prompt(text=str(text)) for text in prompt)
        if all(isinstance(ids, list) and all(type(i) is int for i in ids) for ids in prompt):
            return tuple(Prompt(token_ids=_ids(ids)) for ids in prompt)
    raise BadBody(
        f"{param} must be a text, a list of texts, or one or more lists of token ids.",
        param,
        "invalid_type",
    )


def _ids(tokens: object) -> tuple[int, ...]:
    return msgspec.convert(tokens, tuple[int, ...])


def _choices(n: int | None, num_prompts: int) -> int:
    """How many choices each prompt has."""
    count = 1 if n is None else n
    require(1 <= count <= MAX_CHOICES, f"n must be between 1 and {MAX_CHOICES}.", "n")
    require(
        count * num_prompts <= MAX_CHOICES,
        f"A line has at most {MAX_CHOICES} choices, its prompts times n; split it.",
        "prompt",
    )
    return count


def _require_top(count: int, param: str) -> None:
    require(0 <= count <= MAX_LOGPROBS, f"{param} must be between 0 and {MAX_LOGPROBS}.", param)


def _refuse_unless(fine: bool, param: str) -> None:
    if not fine:
        raise BadBody(f"{param} is not supported yet; remove it.", param, "unsupported_value")
