"""The objects of ``/api/schedules`` as types."""

from typing import Annotated, Any, Literal, TypedDict

from msgspec import Meta

from runner.domain.budgets import ON_BUDGET
from runner.domain.catch_up import CatchUp, Trigger
from runner.domain.overlap import Overlap
from web.api.objects import (
    Amount,
    BatchIdText,
    CostObject,
    FileIdText,
    Identified,
    ListObject,
    ScheduleIdText,
    UnixSeconds,
)

IsoMoment = Annotated[str, Meta(description="A moment in UTC, by RFC 3339.")]


class RunObject(Identified):
    """One planned time of a schedule: the batch it became, or why it became none."""

    object: Literal["schedule.run"]
    schedule_id: ScheduleIdText
    planned_at: IsoMoment
    trigger: Annotated[str, Meta(extra_json_schema={"enum": list(Trigger)})]
    status: Annotated[
        str, Meta(extra_json_schema={"enum": ["waiting", "started", "skipped", "failed"]})
    ]
    outcome: Annotated[str, Meta(description="The status of its batch, else its own.")]
    code: Annotated[str, Meta(description="Why it became no batch, or still waits.")] | None
    reason: str | None
    batch_id: BatchIdText | None
    cost: CostObject | None
    output_status: Annotated[
        str, Meta(extra_json_schema={"enum": ["none", "waiting", "written", "failed"]})
    ]
    output_problem: str | None


class ScheduleObject(Identified):
    """A schedule with its next five times and its last run."""

    object: Literal["schedule"]
    name: str
    cron: str
    cron_words: Annotated[str, Meta(description="What the cron says, in English.")]
    zone: str
    catch_up: Annotated[str, Meta(extra_json_schema={"enum": list(CatchUp)})]
    overlap: Annotated[str, Meta(extra_json_schema={"enum": list(Overlap)})]
    input_file_id: FileIdText | None
    input_tag: str | None
    input_path: str | None
    output_path: str | None
    endpoint: str
    completion_window: str
    priority: int
    on_invalid: str
    dedupe: str
    metadata: dict[str, str] | None
    defaults: dict[str, Any] | None
    max_cost: Amount | None
    on_budget: Annotated[str, Meta(extra_json_schema={"enum": list(ON_BUDGET)})]
    run_hours: str | None
    tags: list[str]
    status: Annotated[str, Meta(extra_json_schema={"enum": ["active", "paused"]})]
    problem: Annotated[str, Meta(description="Why it was paused, where nobody did it.")] | None
    next_runs: list[IsoMoment]
    last_run: RunObject | None
    created_at: UnixSeconds


class DeletedSchedule(TypedDict):
    """What is left of a schedule that was deleted."""

    id: ScheduleIdText
    object: Literal["schedule"]
    deleted: Literal[True]


class ScheduleList(ListObject[ScheduleObject]):
    """All schedules of the project, by name."""


class RunList(ListObject[RunObject]):
    """Runs of a schedule, the latest planned first."""
