"""Batches as the wire has them."""

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from runner.domain.reuse import Dedupe
from runner.domain.states import JobState
from web.api.estimate_objects import BatchEstimate
from web.api.objects import (
    Amount,
    BatchErrors,
    BatchIdText,
    CostObject,
    Count,
    FileIdText,
    Identified,
    ListObject,
    ScheduleIdText,
    UnixSeconds,
    UsageObject,
)


class RequestCounts(TypedDict):
    """Lines of a batch: all of them, those that succeeded, those that failed."""

    total: Count
    completed: Count
    failed: Count


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


class OutputExpiryObject(TypedDict):
    """How long the files of a batch live after they were made."""

    anchor: Literal["created_at"]
    seconds: Count


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
    output_expires_after: OutputExpiryObject | None
    models: Annotated[list[str], Meta(description="Those that its lines name, once it was read.")]
    lines_removed_at: Annotated[UnixSeconds, Meta(description="By retention.")] | None
    priority: int
    tags: list[str]
    p99_ms: Annotated[int, Meta(ge=1)] | None
    schedule_id: ScheduleIdText | None
    start_after: UnixSeconds | None
    run_hours: str | None
    defaults: dict[str, Any] | None
    dedupe: Dedupe
    max_cost: Amount | None
    on_budget: Annotated[str, Meta(extra_json_schema={"enum": ["refuse", "pause"]})]
    phase: Annotated[str, Meta(description="Where the batch stands, finer than its status.")]
    phase_reason: str | None
    queue_position: Annotated[int, Meta(description="1 is the next to be leased.", ge=1)] | None
    estimate: BatchEstimate | None
    cost: CostObject


class BatchList(ListObject[BatchObject]):
    """One page of batches, newest first; ``last_id`` is the ``after`` of the next."""
