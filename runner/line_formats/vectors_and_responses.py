"""The answers of /v1/embeddings and /v1/responses, as types.

Items of a response are tagged structs, for a union of several typed dicts can't be described.
"""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta, Struct

from runner.line_formats.objects import (
    Arguments,
    CallId,
    Count,
    ReasoningOutputTokens,
    TakenToken,
    TruncatedTokens,
)


class EmbeddingUsage(TypedDict):
    """Tokens of one line of /v1/embeddings."""

    prompt_tokens: Count
    total_tokens: Count


class Embedding(TypedDict):
    """The vector of one input: numbers, or float32 little-endian in base64."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class EmbeddingList(TypedDict):
    """The answer to a line of /v1/embeddings."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    truncated_prompt_tokens: NotRequired[TruncatedTokens]


class ResponseInputTokens(TypedDict):
    """Of the input's tokens, those whose work was already done."""

    cached_tokens: Count
    cache_write_tokens: Count


class ResponseUsage(TypedDict):
    """Tokens of one line of /v1/responses."""

    input_tokens: Count
    input_tokens_details: ResponseInputTokens
    output_tokens: Count
    output_tokens_details: ReasoningOutputTokens
    total_tokens: Count


class OutputText(TypedDict):
    """What the model said."""

    type: Literal["output_text"]
    text: str
    annotations: Annotated[list[Any], Meta(max_length=0)]
    logprobs: list[TakenToken]


class OutputMessage(Struct, tag_field="type", tag="message"):
    """One message of a response."""

    id: str
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


class OutputCall(Struct, tag_field="type", tag="function_call"):
    """One call of a function, beside a response's message or instead of it."""

    id: Annotated[str, Meta(pattern="^fc_batch_req_[0-9a-z]{26}_[0-9]+_[0-9]+$")]
    call_id: CallId
    name: str
    arguments: Arguments
    status: Literal["completed"]


class ResponseTool(TypedDict):
    """A function that the model may call, as the line has it."""

    type: Literal["function"]
    name: str
    description: NotRequired[str | None]
    parameters: NotRequired[dict[str, Any] | None]
    strict: NotRequired[bool | None]


class NamedTool(TypedDict):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class IncompleteDetails(TypedDict):
    """Why a response is not whole."""

    reason: Literal["max_output_tokens"]


class ResponseObject(TypedDict):
    """The answer to a line of /v1/responses; fields of the body are repeated in it."""

    id: str
    object: Literal["response"]
    created_at: Count
    status: Literal["completed", "incomplete"]
    error: None
    incomplete_details: IncompleteDetails | None
    model: str
    output: Annotated[list[OutputMessage | OutputCall], Meta(min_length=1)]
    usage: ResponseUsage
    temperature: float
    top_p: float
    background: Literal[False]
    previous_response_id: None
    reasoning: dict[str, None]
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    store: bool
    text: dict[str, Any]
    tool_choice: Literal["none", "auto", "required"] | NamedTool
    tools: list[ResponseTool]
    top_logprobs: Count
    truncation: str
    user: str | None
    truncated_prompt_tokens: NotRequired[TruncatedTokens]
