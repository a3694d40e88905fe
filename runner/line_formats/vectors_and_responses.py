"""The answers of /v1/embeddings and /v1/responses, as types."""

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from msgspec import Meta

from runner.line_formats.objects import (
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


class OutputMessage(TypedDict):
    """One message of a response."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["completed", "incomplete"]
    content: list[OutputText]


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
    output: list[OutputMessage]
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
    tool_choice: Any
    tools: list[Any]
    top_logprobs: Count
    truncation: str
    user: str | None
    truncated_prompt_tokens: NotRequired[TruncatedTokens]
