"""The objects that answers hold, as types: renderers return them, and the document describes them.

A field that a renderer adds or drops without a word here does not pass the type check.
"""

from typing import Annotated, Generic, Literal, TypedDict, TypeVar

from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
UnixSeconds = Annotated[int, Meta(description="Seconds since 1970, UTC.", ge=0)]
Amount = Annotated[
    str,
    Meta(description="A decimal number, exact to nine places.", pattern=r"^[0-9]+\.[0-9]{9}$"),
]
Difference = Annotated[
    str,
    Meta(
        description="A decimal number, exact to nine places; negative for a loss.",
        pattern=r"^-?[0-9]+\.[0-9]{9}$",
    ),
]
Joules = Annotated[
    float, Meta(description="Measured, for the lines whose worker has a meter.", ge=0)
]
FileIdText = Annotated[str, Meta(pattern="^file-[0-9a-z]{26}$")]
BatchIdText = Annotated[str, Meta(pattern="^batch_[0-9a-z]{26}$")]
UploadIdText = Annotated[str, Meta(pattern="^upload_[0-9a-z]{26}$")]
ScheduleIdText = Annotated[str, Meta(pattern="^sched_[0-9a-z]{26}$")]
PartIdText = Annotated[str, Meta(pattern="^part_[0-9a-z]{26}$")]
Milliseconds = Annotated[float, Meta(ge=0)]


class Identified(TypedDict):
    """Whatever a list may hold."""

    id: str


class ModelObject(Identified):
    """A model that lines may name."""

    object: Literal["model"]
    created: UnixSeconds
    owned_by: str


class BatchError(TypedDict):
    """One fault found in a batch's file; ``line`` counts from 1, null for the file as such."""

    code: str
    line: Annotated[int, Meta(ge=1)] | None
    message: str
    param: str | None


class BatchErrors(TypedDict):
    """The first hundred faults; when there are more, a last entry (``more_errors``) counts them."""

    object: Literal["list"]
    data: list[BatchError]


class CachedTokens(TypedDict):
    """Of the input tokens, those whose work was already done."""

    cached_tokens: Count


class ReasoningTokens(TypedDict):
    """Of the output tokens, those of reasoning; they are not counted apart."""

    reasoning_tokens: Count


class UsageObject(TypedDict):
    """Tokens of all lines that succeeded so far."""

    input_tokens: Count
    input_tokens_details: CachedTokens
    output_tokens: Count
    output_tokens_details: ReasoningTokens
    total_tokens: Count


class CostObject(TypedDict):
    """What the lines so far cost: by the price list, and by their share of device time."""

    currency: str
    billed: Amount
    run: Amount


Item = TypeVar("Item", bound=Identified)


class ListObject(TypedDict, Generic[Item]):
    """One page; ``last_id`` is the ``after`` of the next."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ModelList(TypedDict):
    """All models, in one page."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(TypedDict):
    """The process is well."""

    status: Literal["ok"]


class Unready(TypedDict):
    """The process lives but cannot serve."""

    status: Literal["unavailable"]
    problems: list[str]


class ErrorDetail(TypedDict):
    """What went wrong, where, and what to do."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "requests", "server_error"]
    param: Annotated[str, Meta(description="The parameter at fault.")] | None
    code: Annotated[str, Meta(description="Stable; see the table of codes.")]


class ErrorEnvelope(TypedDict):
    """Every error under ``/v1``."""

    error: ErrorDetail


class Problem(TypedDict):
    """Every error elsewhere: a problem of RFC 9457."""

    type: Literal["about:blank"]
    title: str
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: str
    code: str
    param: str | None
    request_id: str
