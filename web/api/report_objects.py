"""What a job, its lines and a project have used, as the wire has it."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from runner.domain.states import JobState
from web.api.objects import (
    Amount,
    BatchIdText,
    CostObject,
    Count,
    Difference,
    Joules,
    Milliseconds,
    UnixSeconds,
    UsageObject,
)


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


class ReusedObject(TypedDict):
    """Lines that took the answers of others, and what that saved against computing them."""

    lines: Count
    saved: Amount


class AlertObject(TypedDict):
    """A promise of the batch that will not be kept, as it was told."""

    kind: Literal["deadline", "latency"]
    message: str
    created_at: UnixSeconds


class ModelShare(TypedDict):
    """What the lines that name one model came to; ``lines`` are those that succeeded."""

    model: str
    lines: Count
    usage: UsageObject
    cost: ExactCost


class ReportObject(TypedDict):
    """The true account of a job, also while it runs."""

    job_id: BatchIdText
    state: JobState
    model: Annotated[str | None, Meta(description="Null where lines name several.")]
    models: list[ModelShare]
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
    reused: ReusedObject
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
    reused: ReusedObject
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
    reused: Annotated[bool, Meta(description="It took another's answer: nothing was computed.")]
    saved: Annotated[Amount, Meta(description="Against computing it.")]
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


class RetentionObject(TypedDict):
    """For how many days the lines of ended batches are kept; for ever where it is null."""

    object: Literal["retention"]
    days: Annotated[int, Meta(ge=7, le=3650)] | None
    applied_at: Annotated[UnixSeconds, Meta(description="The last look for what is due.")] | None
