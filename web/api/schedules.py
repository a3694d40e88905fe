"""``/api/schedules``: what runs by itself, and what became of it."""

import json
from dataclasses import fields
from datetime import UTC, datetime
from typing import Annotated, Any

from flask import Blueprint, request
from flask.typing import ResponseReturnValue
from pydantic import ConfigDict, Field, JsonValue

from runner.domain.budgets import ON_BUDGET
from runner.domain.catch_up import CatchUp
from runner.domain.cron import LONGEST_CRON
from runner.domain.errors import InvalidRequest
from runner.domain.ids import (
    FILE_PREFIX,
    JOB_PREFIX,
    RUN_PREFIX,
    SCHEDULE_PREFIX,
    FileId,
    RunId,
    ScheduleId,
    decode,
    encode,
)
from runner.domain.lines import ENDPOINTS
from runner.domain.overlap import Overlap
from runner.domain.reuse import Dedupe
from runner.domain.windows import WINDOW_PATTERN
from runner.services import jobs, schedule_runs, schedules
from runner.services.schedule_records import RunRecord, ScheduleRecord, Terms
from runner.services.schedules import Keeper
from web.api.amounts import Money, read_money
from web.api.batches import DedupeText, Tags, defaults_bytes
from web.api.bodies import Body, read_body
from web.api.control_fields import Priority, RunHoursText
from web.api.lists import list_object, read_limit
from web.api.objects import CostObject
from web.api.schedule_objects import DeletedSchedule, RunObject, ScheduleObject
from web.api.wire import CURRENCY, decimal_text, read_id, seconds
from web.auth import current_caller
from web.request_scope import current_runtime, current_session

bp = Blueprint("schedules", __name__)

_NAME: dict[str, JsonValue] = {"minLength": 1, "maxLength": schedules.NAME_LETTERS}
_CRON: dict[str, JsonValue] = {"maxLength": LONGEST_CRON}
_ABOUT_CRON = "Five fields: minute, hour, day of month, month, day of week; such as 30 2 * * *."
_ABOUT_ZONE = "The IANA time zone whose clock the cron is read by."
_ABOUT_CATCH_UP = (
    "What becomes of times that were missed by more than five minutes: nothing, the latest within "
    "six hours, or all up to seven."
)
_ABOUT_OVERLAP = "While an earlier run has not ended: leave the run out, let it wait, or start it."
_ABOUT_FILE = "The file that every run reads; it does not expire as long as a schedule names it."
_ABOUT_TAG = "Each run reads the newest file with this tag."
_ABOUT_PATH = "An address in an allowed folder or bucket; %Y %m %d %H %M %j give the planned time."
_ABOUT_MAX_COST = "Each batch pauses before it is billed more."
_ABOUT_ON_BUDGET = "Whether a run whose batch will not fit its limits fails, or pauses then."
_ABOUT_OUTPUT = "Where the output is written once the run has ended; errors go beside it."


def _enum(values: Any) -> dict[str, JsonValue]:  # noqa: ANN401
    return {"enum": list(values)}


def _without_defaults(schema: dict[str, Any]) -> None:
    """In a change, what is left out has no default: it stays."""
    for field in schema["properties"].values():
        field.pop("default", None)


class ChangeSchedule(Body):
    """What is to be different; a field that is left out stays, null takes it away."""

    model_config = ConfigDict(json_schema_extra=_without_defaults)

    name: Annotated[str, Field(json_schema_extra=_NAME)] = ""
    cron: Annotated[str, Field(description=_ABOUT_CRON, json_schema_extra=_CRON)] = ""
    zone: Annotated[str, Field(description=_ABOUT_ZONE)] = "UTC"
    endpoint: Annotated[str, Field(json_schema_extra=_enum(ENDPOINTS))] = ""
    catch_up: Annotated[
        str, Field(description=_ABOUT_CATCH_UP, json_schema_extra=_enum(CatchUp))
    ] = CatchUp.LATEST.value
    overlap: Annotated[str, Field(description=_ABOUT_OVERLAP, json_schema_extra=_enum(Overlap))] = (
        Overlap.SKIP.value
    )
    input_file_id: Annotated[str | None, Field(description=_ABOUT_FILE)] = None
    input_tag: Annotated[str | None, Field(description=_ABOUT_TAG)] = None
    input_path: Annotated[str | None, Field(description=_ABOUT_PATH)] = None
    output_path: Annotated[str | None, Field(description=_ABOUT_OUTPUT)] = None
    completion_window: Annotated[str, Field(json_schema_extra={"pattern": WINDOW_PATTERN})] = "24h"
    priority: Priority = 0
    on_invalid: Annotated[str, Field(json_schema_extra=_enum(jobs.ON_INVALID))] = "skip"
    dedupe: DedupeText = Dedupe.OFF
    metadata: dict[str, str] | None = None
    defaults: dict[str, Any] | None = None
    max_cost: Annotated[Money | None, Field(description=_ABOUT_MAX_COST)] = None
    on_budget: Annotated[
        str, Field(description=_ABOUT_ON_BUDGET, json_schema_extra=_enum(ON_BUDGET))
    ] = "refuse"
    run_hours: RunHoursText | None = None
    tags: Tags = []


class CreateSchedule(ChangeSchedule):
    """A schedule: when, on which of three inputs, and how."""

    model_config = ConfigDict(json_schema_extra={})

    name: Annotated[str, Field(json_schema_extra=_NAME)]
    cron: Annotated[str, Field(description=_ABOUT_CRON, json_schema_extra=_CRON)]
    endpoint: Annotated[str, Field(json_schema_extra=_enum(ENDPOINTS))]


@bp.post("/schedules")
def create_schedule() -> ResponseReturnValue:
    """Make a schedule; it runs at the next time that its cron names."""
    given = _given(read_body(CreateSchedule))
    return schedule_object(schedules.create_schedule(current_session(), _keeper(), Terms(**given)))


@bp.get("/schedules")
def list_schedules() -> ResponseReturnValue:
    """The project's schedules by name, all on one page."""
    found = schedules.list_schedules(current_session(), current_caller().project_id)
    return list_object([schedule_object(one) for one in found], has_more=False)


@bp.get("/schedules/<schedule_id>")
def show_schedule(schedule_id: str) -> ResponseReturnValue:
    """One schedule with its next five times and its last run."""
    wanted = read_schedule_id(schedule_id)
    found = schedules.get_schedule(current_session(), current_caller().project_id, wanted)
    return schedule_object(found)


@bp.patch("/schedules/<schedule_id>")
def change_schedule(schedule_id: str) -> ResponseReturnValue:
    """Change some fields; runs that are under way go on as they began."""
    wanted, session, keeper = read_schedule_id(schedule_id), current_session(), _keeper()
    now = schedules.get_schedule(session, keeper.project_id, wanted).terms
    given = _given(read_body(ChangeSchedule))
    former = {field.name: getattr(now, field.name) for field in fields(Terms)}
    changed = schedules.change_schedule(session, keeper, wanted, Terms(**{**former, **given}))
    return schedule_object(changed)


@bp.delete("/schedules/<schedule_id>")
def delete_schedule(schedule_id: str) -> ResponseReturnValue:
    """End a schedule; its jobs stay."""
    gone = read_schedule_id(schedule_id)
    schedules.delete_schedule(current_session(), current_caller().project_id, gone)
    deleted: DeletedSchedule = {
        "id": encode(SCHEDULE_PREFIX, gone), "object": "schedule", "deleted": True,
    }  # fmt: skip
    return deleted


@bp.post("/schedules/<schedule_id>/pause")
def pause_schedule(schedule_id: str) -> ResponseReturnValue:
    """Start nothing more until it is resumed; what has begun goes on."""
    wanted = read_schedule_id(schedule_id)
    paused = schedules.pause_schedule(current_session(), current_caller().project_id, wanted)
    return schedule_object(paused)


@bp.post("/schedules/<schedule_id>/resume")
def resume_schedule(schedule_id: str) -> ResponseReturnValue:
    """Go on with the next planned time; those of the pause are not made up for."""
    wanted = read_schedule_id(schedule_id)
    resumed = schedules.resume_schedule(current_session(), current_caller().project_id, wanted)
    return schedule_object(resumed)


@bp.post("/schedules/<schedule_id>/run")
def run_schedule(schedule_id: str) -> ResponseReturnValue:
    """Run it now, also while it is paused or an earlier run has not ended."""
    wanted = read_schedule_id(schedule_id)
    return run_object(schedule_runs.run_now(current_session(), current_caller().project_id, wanted))


@bp.get("/schedules/<schedule_id>/runs")
def list_runs(schedule_id: str) -> ResponseReturnValue:
    """A page of a schedule's runs, the latest planned first."""
    wanted = read_schedule_id(schedule_id)
    after = request.args.get("after")
    cursor = None if after is None else RunId(read_id(RUN_PREFIX, after, "run", "after"))
    page = schedule_runs.list_runs(
        current_session(), current_caller().project_id, wanted, cursor, read_limit(20, 100)
    )
    return list_object([run_object(run) for run in page.items], page.has_more)


def read_schedule_id(text: str) -> ScheduleId:
    """The schedule that an outer id names."""
    return ScheduleId(read_id(SCHEDULE_PREFIX, text, "schedule", "schedule_id"))


def schedule_object(schedule: ScheduleRecord) -> ScheduleObject:
    """A schedule as the API shows it."""
    terms, last = schedule.terms, schedule.last_run
    file_id = terms.input_file_id
    return {
        "id": encode(SCHEDULE_PREFIX, schedule.id),
        "object": "schedule",
        "name": terms.name,
        "cron": terms.cron,
        "cron_words": schedule.words,
        "zone": terms.zone,
        "catch_up": terms.catch_up,
        "overlap": terms.overlap,
        "input_file_id": None if file_id is None else encode(FILE_PREFIX, file_id),
        "input_tag": terms.input_tag,
        "input_path": terms.input_path,
        "output_path": terms.output_path,
        "endpoint": terms.endpoint,
        "completion_window": terms.completion_window,
        "priority": terms.priority,
        "on_invalid": terms.on_invalid,
        "dedupe": terms.dedupe,
        "metadata": terms.metadata,
        "defaults": None if terms.defaults is None else json.loads(terms.defaults),
        "max_cost": None if terms.max_cost_nano is None else decimal_text(terms.max_cost_nano),
        "on_budget": terms.on_budget,
        "run_hours": terms.run_hours,
        "tags": list(terms.tags),
        "status": "paused" if schedule.state == "paused" else "active",
        "problem": schedule.problem,
        "next_runs": [_iso(at) for at in schedule.next_runs],
        "last_run": None if last is None else run_object(last),
        "created_at": seconds(schedule.created_at),
    }


def run_object(run: RunRecord) -> RunObject:
    """A run as the API shows it."""
    job = run.job
    cost: CostObject | None = None
    if job is not None:
        cost = {
            "currency": CURRENCY,
            "billed": decimal_text(job.totals.billed_nano),
            "run": decimal_text(job.totals.run_cost_nano),
        }
    return {
        "id": encode(RUN_PREFIX, run.id),
        "object": "schedule.run",
        "schedule_id": encode(SCHEDULE_PREFIX, run.schedule_id),
        "planned_at": _iso(run.planned_at),
        "trigger": run.trigger,
        "status": run.state,
        "outcome": run.outcome,
        "code": run.code,
        "reason": run.reason,
        "batch_id": None if job is None else encode(JOB_PREFIX, job.id),
        "cost": cost,
        "output_status": run.output_state,
        "output_problem": run.output_problem,
    }


def _keeper() -> Keeper:
    return Keeper(current_caller(), current_runtime().settings.stores)


def _given(body: ChangeSchedule) -> dict[str, Any]:
    """The fields that a request names, as the services take them."""
    given = {name: getattr(body, name) for name in body.model_fields_set}
    if body.input_file_id is not None:
        file_id = decode(FILE_PREFIX, body.input_file_id)
        if file_id is None:
            raise InvalidRequest("There is no such file in this project.", param="input_file_id")
        given["input_file_id"] = FileId(file_id)
    if body.defaults is not None:
        given["defaults"] = defaults_bytes(body.defaults)
    if "max_cost" in given:
        given["max_cost_nano"] = read_money(given.pop("max_cost"), "max_cost")
    if "tags" in given:
        given["tags"] = tuple(body.tags)
    return given


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="seconds")
