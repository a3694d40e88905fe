"""The objects that answers hold, as types: renderers return them, and the document describes them.

A field that a renderer adds or drops without a word here does not pass the type check.
"""

from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from msgspec import Meta

from runner.domain.states import JobState

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


class FileObject(Identified):
    """An uploaded file, or the output or error file of a batch."""

    object: Literal["file"]
    bytes: Count
    created_at: UnixSeconds
    filename: str
    purpose: Annotated[str, Meta(extra_json_schema={"enum": ["batch", "batch_output"]})]
    status: Literal["processed"]
    status_details: None
    expires_at: NotRequired[UnixSeconds]
    tags: NotRequired[Annotated[list[str], Meta(description="Tokenmill's own.")]]


class DeletedFile(TypedDict):
    """What is left of a file that was deleted."""

    id: FileIdText
    object: Literal["file"]
    deleted: Literal[True]


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


class RequestCounts(TypedDict):
    """Lines of a batch: all of them, those that succeeded, those that failed."""

    total: Count
    completed: Count
    failed: Count


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


class CountRange(TypedDict):
    """A number that is rarely undercut, the likely one, and one that is rarely passed."""

    low: Count
    likely: Count
    high: Count


class AmountRange(TypedDict):
    """An amount that is rarely undercut, the likely one, and one that is rarely passed."""

    low: Amount
    likely: Amount
    high: Amount


class SecondsRange(TypedDict):
    """Seconds that are rarely undercut, the likely ones, and those that are rarely passed."""

    low: Annotated[float, Meta(ge=0)]
    likely: Annotated[float, Meta(ge=0)]
    high: Annotated[float, Meta(ge=0)]


class EstimateObject(TypedDict):
    """What lines are expected to take. What is called ``most`` is never passed.

    ``is_exact`` tells that every prompt was counted with the model's own tokenizer. ``basis`` is
    what the output rests on: earlier runs of the ``schedule``, earlier jobs of the project with
    the ``model``, or ``max_tokens``: all that was asked for. Times are null while no worker runs
    the model or its speed was never measured; ``ends_at`` is the likely end.
    """

    lines: Count
    input_tokens: Count
    input_tokens_most: Count
    is_exact: bool
    cached_tokens: Count
    longest_prompt: Count
    output_tokens: CountRange
    output_tokens_most: Count
    basis: Annotated[str, Meta(extra_json_schema={"enum": ["schedule", "model", "max_tokens"]})]
    history_lines: Count
    currency: str
    billed: AmountRange
    billed_most: Amount
    run: AmountRange | None
    device_seconds: SecondsRange | None
    seconds_to_end: SecondsRange | None
    ends_at: UnixSeconds | None
    made_at: UnixSeconds | None


class ActualObject(TypedDict):
    """What a batch took in the end."""

    lines: Count
    input_tokens: Count
    cached_tokens: Count
    output_tokens: Count
    billed: Amount
    run: Amount
    device_seconds: Annotated[float, Meta(ge=0)]
    run_seconds: Annotated[float, Meta(ge=0)] | None


class BatchEstimate(TypedDict):
    """The estimate given before the run, the newest one while it lasts, and what it came to.

    ``given`` becomes exact once all prompts are counted, and then stays.
    """

    given: EstimateObject
    newest: EstimateObject | None
    actual: ActualObject | None
    is_counted: bool
    too_long_lines: Count
    refused_lines: Count


class EstimateAnswer(TypedDict):
    """What a file would take as a batch. Line numbers count from 1, without blank lines.

    ``lines_counted`` were counted exactly before the time for it was over. ``too_long`` names the
    first hundred lines whose prompt leaves no room for an answer; ``faults`` are what reading the
    file would find, the first twenty of them.
    """

    object: Literal["estimate"]
    endpoint: str
    model: str
    lines_counted: Count
    too_long_lines: Count
    too_long: list[Annotated[int, Meta(ge=1)]]
    refused_lines: Count
    fault_count: Count
    faults: list[BatchError]
    estimate: EstimateObject


class BatchTimes(TypedDict):
    """When a batch came into each of its states."""

    created_at: UnixSeconds
    in_progress_at: UnixSeconds | None
    expires_at: UnixSeconds
    finalizing_at: UnixSeconds | None
    completed_at: UnixSeconds | None
    failed_at: UnixSeconds | None
    expired_at: UnixSeconds | None
    cancelling_at: UnixSeconds | None
    cancelled_at: UnixSeconds | None


class BatchObject(Identified, BatchTimes):
    """A batch. From ``parent_id`` on, the fields are Tokenmill's own."""

    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: FileIdText
    completion_window: str
    status: JobState
    output_file_id: FileIdText | None
    error_file_id: FileIdText | None
    request_counts: RequestCounts
    usage: UsageObject
    metadata: dict[str, str] | None
    parent_id: BatchIdText | None
    priority: int
    tags: list[str]
    p99_ms: Annotated[int, Meta(ge=1)] | None
    schedule_id: ScheduleIdText | None
    start_after: UnixSeconds | None
    run_hours: str | None
    defaults: dict[str, Any] | None
    max_cost: Amount | None
    on_budget: Annotated[str, Meta(extra_json_schema={"enum": ["refuse", "pause"]})]
    phase: Annotated[str, Meta(description="Where the batch stands, finer than its status.")]
    phase_reason: str | None
    queue_position: Annotated[int, Meta(description="1 is the next to be leased.", ge=1)] | None
    estimate: BatchEstimate | None
    cost: CostObject


class BudgetObject(Identified):
    """What may be billed in each month, and what this month has used of it.

    ``reserved`` is what lines in work can still be billed at most.
    """

    object: Literal["budget"]
    api_key_id: Annotated[str, Meta(pattern="^key_[0-9a-z]{26}$")] | None
    name: Annotated[str, Meta(description="Of the key.")] | None
    month: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}$")]
    currency: str
    limit: Amount
    spent: Amount
    reserved: Amount
    left: Amount


class BudgetList(TypedDict):
    """All budgets of a project, its own first."""

    object: Literal["list"]
    data: list[BudgetObject]


class DeletedBudget(TypedDict):
    """What is left of a budget that was taken away."""

    id: Annotated[str, Meta(pattern="^budget_[0-9a-z]{26}$")]
    object: Literal["budget"]
    deleted: Literal[True]


class UploadObject(Identified):
    """A file that comes in parts; ``file`` is set once it is completed."""

    object: Literal["upload"]
    bytes: Count
    created_at: UnixSeconds
    filename: str
    purpose: Annotated[str, Meta(extra_json_schema={"enum": ["batch"]})]
    status: Annotated[
        str, Meta(extra_json_schema={"enum": ["pending", "completed", "cancelled", "expired"]})
    ]
    expires_at: UnixSeconds
    file: FileObject | None


class PartObject(TypedDict):
    """One part of an upload."""

    id: PartIdText
    object: Literal["upload.part"]
    created_at: UnixSeconds
    upload_id: UploadIdText


Item = TypeVar("Item", bound=Identified)


class ListObject(TypedDict, Generic[Item]):
    """One page; ``last_id`` is the ``after`` of the next."""

    object: Literal["list"]
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileList(ListObject[FileObject]):
    """One page of files; ``last_id`` is the ``after`` of the next."""


class BatchList(ListObject[BatchObject]):
    """One page of batches, newest first; ``last_id`` is the ``after`` of the next."""


class ModelList(TypedDict):
    """All models, in one page."""

    object: Literal["list"]
    data: list[ModelObject]


class LineCounts(TypedDict):
    """Lines of a job: all, succeeded, failed, and billed."""

    total: Count
    succeeded: Count
    failed: Count
    billed: Count


class ExactCost(CostObject):
    """The cost, also in integer nano-units, and what is left of the bill."""

    billed_nano: Count
    run_nano: Count
    margin: Difference
    margin_nano: int


class PercentilesObject(TypedDict):
    """Milliseconds; null where no line has finished."""

    p50: Milliseconds | None
    p90: Milliseconds | None
    p99: Milliseconds | None


class LatencyObject(TypedDict):
    """How long lines waited, until their first token, between two tokens, and in all."""

    queue: PercentilesObject
    first_token: PercentilesObject
    per_token: PercentilesObject
    total: PercentilesObject


class LaneObject(TypedDict):
    """How the engine ran some of a job's lines, and why not in its faster lane."""

    name: str
    reason: str | None
    lines: Count


class WasteObject(TypedDict):
    """Attempts at lines that came to nothing, and the device time they took."""

    attempts: Count
    device_seconds: Annotated[float, Meta(ge=0)]


class TruncatedObject(TypedDict):
    """Prompts that were shortened, and the tokens they lost."""

    lines: Count
    tokens: Count


class AlertObject(TypedDict):
    """A promise of the batch that will not be kept, as it was told."""

    kind: Literal["deadline", "latency"]
    message: str
    created_at: UnixSeconds


class ReportObject(TypedDict):
    """The true account of a job, also while it runs."""

    job_id: BatchIdText
    state: JobState
    model: str | None
    lines: LineCounts
    usage: UsageObject
    cost: ExactCost
    latency_ms: LatencyObject
    device_seconds: Annotated[float, Meta(ge=0)]
    joules: Joules | None
    attempts: Annotated[int, Meta(description="Leases that the billed lines took.", ge=0)]
    wasted: WasteObject
    preemptions: Count
    recomputed_tokens: Count
    lanes: list[LaneObject]
    truncated: TruncatedObject
    alerts: list[AlertObject]


class SpentObject(TypedDict):
    """Sums over lines that succeeded; ``attempts`` are the leases that they took."""

    lines: Count
    attempts: Count
    input_tokens: Count
    cached_input_tokens: Count
    output_tokens: Count
    device_seconds: Annotated[float, Meta(ge=0)]
    joules: Joules | None
    cost: ExactCost


class SpentGroup(SpentObject):
    """The sums of one group; null where a job has no such thing."""

    group: dict[str, str | None]


class LineUsageObject(TypedDict):
    """What one line that succeeded took; ``index`` counts a batch's lines from 0.

    ``attempt`` is the lease that succeeded: one less were wasted. ``per_token_ms`` is the time
    between two output tokens.
    """

    index: Count
    custom_id: str
    attempt: Count
    input_tokens: Count
    computed_input_tokens: Count
    cached_input_tokens: Count
    output_tokens: Count
    queue_ms: Milliseconds
    prefill_ms: Milliseconds
    first_token_ms: Milliseconds
    decode_ms: Milliseconds
    per_token_ms: Milliseconds | None
    total_ms: Milliseconds
    device_ms: Milliseconds
    preemptions: Count
    recomputed_tokens: Count
    joules: Joules | None
    cost: ExactCost


class LineUsageList(TypedDict):
    """A page of lines in their order; ``last_index`` is the ``after`` of the next."""

    object: Literal["list"]
    data: list[LineUsageObject]
    last_index: Count | None
    has_more: bool


class SpendingObject(TypedDict):
    """What was spent, by groups and in all. Days are those of UTC, both ends included.

    A job of several tags counts under each: groups by tag may add up to more than ``total``.
    """

    object: Literal["usage"]
    first_day: str | None
    last_day: str | None
    group_by: list[str]
    data: list[SpentGroup]
    total: SpentObject
    latency_ms: LatencyObject


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
    type: Literal["invalid_request_error", "authentication_error", "server_error"]
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
