"""The lines of output and error files, and the answers in them, as types."""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
LineId = Annotated[str, Meta(pattern="^batch_req_[0-9a-z]{26}_[0-9]+$")]
ReusedFrom = Annotated[
    LineId, Meta(description="The equal line whose answer this is; absent where it was computed.")
]
TruncatedTokens = Annotated[
    int, Meta(description="By how many tokens the prompt was shortened; absent where not.", ge=1)
]
FinishReason = Literal["stop", "length"]
ChatFinishReason = Literal["stop", "length", "tool_calls"]
Arguments = Annotated[str, Meta(description="A JSON object, as the model wrote it.")]
CallId = Annotated[str, Meta(pattern="^call_[0-9a-f]{24}$")]
Logprob = Annotated[float, Meta(description="Natural logarithm; -9999 for the impossible.", le=0)]


class CachedPromptTokens(TypedDict):
    """Of the prompt's tokens, those whose work was already done."""

    cached_tokens: Count


class ReasoningOutputTokens(TypedDict):
    """Of the output's tokens, those of reasoning; they are not counted apart."""

    reasoning_tokens: Count


class LineUsage(TypedDict):
    """Tokens of one line."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedPromptTokens
    completion_tokens_details: ReasoningOutputTokens


class Likely(TypedDict):
    """A token with its log-probability."""

    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Meta(ge=0, le=255)]]


class TakenToken(Likely):
    """A token of the output, and the likeliest at its place."""

    top_logprobs: list[Likely]


class ChatLogprobs(TypedDict):
    """Log-probabilities of a chat's tokens."""

    content: list[TakenToken]
    refusal: None


class TextLogprobs(TypedDict):
    """Log-probabilities of a completion's tokens, place by place."""

    tokens: list[str]
    token_logprobs: list[Logprob]
    top_logprobs: list[dict[str, Logprob]]
    text_offset: list[Count]


class ChatFunctionCall(TypedDict):
    """The function that the model wants called."""

    name: str
    arguments: Arguments


class ChatToolCall(TypedDict):
    """One call of a function."""

    id: CallId
    type: Literal["function"]
    function: ChatFunctionCall


class AssistantMessage(TypedDict):
    """What the model said; the content is null where it made calls and said nothing beside them."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: NotRequired[Annotated[list[ChatToolCall], Meta(min_length=1)]]


class ChatChoice(TypedDict):
    """One answer to a chat."""

    index: Count
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinishReason


class TextChoice(TypedDict):
    """One continuation of a prompt; ``index`` is the prompt's number times ``n``, plus k."""

    index: Count
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(TypedDict):
    """The answer to a line of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: LineUsage
    system_fingerprint: None
    truncated_prompt_tokens: NotRequired[TruncatedTokens]


class TextCompletion(TypedDict):
    """The answer to a line of /v1/completions."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[TextChoice]
    usage: LineUsage
    system_fingerprint: None
    truncated_prompt_tokens: NotRequired[TruncatedTokens]


class LineFailure(TypedDict):
    """Why a line failed, in the words of the error envelope."""

    message: str
    type: Literal["invalid_request_error", "server_error"]
    param: str | None
    code: str


class FailureBody(TypedDict):
    """The body of a line's answer that is an error."""

    error: LineFailure


class FailureResponse(TypedDict):
    """A line's answer that is an error."""

    status_code: Annotated[int, Meta(ge=400, le=599)]
    request_id: LineId
    body: FailureBody


class FailedLine(TypedDict):
    """A line of an error file: the line was answered, with an error."""

    id: LineId
    custom_id: str | None
    response: FailureResponse
    error: None
    reused_from: NotRequired[ReusedFrom]


class Unfinished(TypedDict):
    """Why a line was never run."""

    code: Literal["batch_cancelled", "batch_expired"]
    message: str


class UnfinishedLine(TypedDict):
    """A line of an error file: the batch ended before the line was run."""

    id: LineId
    custom_id: str
    response: None
    error: Unfinished
