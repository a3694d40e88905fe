"""The pages of schedules: the list, one schedule with its times and runs, and what may be done."""

from collections.abc import Callable
from datetime import datetime
from zoneinfo import ZoneInfo

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import NotFound
from runner.domain.ids import SCHEDULE_PREFIX, ScheduleId, decode, encode
from runner.services import schedule_runs, schedules
from runner.services.schedule_records import ScheduleRecord
from runner.services.schedules import Keeper
from web.request_scope import current_runtime, current_session
from web.ui.guard import current_caller, require_session, require_token
from web.ui.schedule_form import CHOICES, read_terms, schedule_options, source

bp = Blueprint("schedules", __name__)
bp.before_request(require_session)
bp.add_app_template_filter(source)
bp.add_app_template_filter(schedule_options)

_RUNS_SHOWN = 30


@bp.app_template_filter("schedule_id")
def outer_id(schedule: ScheduleRecord) -> str:
    """The id of a schedule as in its page's address."""
    return encode(SCHEDULE_PREFIX, schedule.id)


@bp.app_template_filter("on_clock")
def on_clock(moment: datetime, zone: str) -> str:
    """A moment as the clock of a zone shows it."""
    return moment.astimezone(ZoneInfo(zone)).strftime("%a %Y-%m-%d %H:%M %Z")


@bp.get("/schedules")
def show_schedules() -> ResponseReturnValue:
    """The list, and the way to add to it."""
    found = schedules.list_schedules(current_session(), current_caller().project_id)
    return render_template("schedules.html", schedules=found, terms=None, **CHOICES)


@bp.post("/schedules")
def create_schedule() -> ResponseReturnValue:
    """Make a schedule of the form."""
    require_token()
    made = schedules.create_schedule(current_session(), _keeper(), read_terms(request.form))
    return _back_to(outer_id(made))


@bp.get("/schedules/<schedule_id>")
def show_schedule(schedule_id: str) -> ResponseReturnValue:
    """One schedule: when it runs next, what became of its runs, and its form."""
    wanted, project_id = _read_id(schedule_id), current_caller().project_id
    found = schedules.get_schedule(current_session(), project_id, wanted)
    page = schedule_runs.list_runs(current_session(), project_id, wanted, None, _RUNS_SHOWN)
    return render_template(
        "schedule.html", schedule=found, terms=found.terms, runs=page.items, **CHOICES
    )


@bp.post("/schedules/<schedule_id>/change")
def change_schedule(schedule_id: str) -> ResponseReturnValue:
    """Give a schedule the terms of the form; what the form does not show stays."""
    require_token()
    wanted, session, keeper = _read_id(schedule_id), current_session(), _keeper()
    former = schedules.get_schedule(session, keeper.project_id, wanted).terms
    schedules.change_schedule(session, keeper, wanted, read_terms(request.form, former))
    return _back_to(schedule_id)


@bp.post("/schedules/<schedule_id>/pause")
def pause_schedule(schedule_id: str) -> ResponseReturnValue:
    """Start nothing more."""
    return _act(schedule_id, schedules.pause_schedule)


@bp.post("/schedules/<schedule_id>/resume")
def resume_schedule(schedule_id: str) -> ResponseReturnValue:
    """Go on at the next planned time."""
    return _act(schedule_id, schedules.resume_schedule)


@bp.post("/schedules/<schedule_id>/run")
def run_schedule(schedule_id: str) -> ResponseReturnValue:
    """Ask for a run now."""
    return _act(schedule_id, schedule_runs.run_now)


@bp.post("/schedules/<schedule_id>/delete")
def delete_schedule(schedule_id: str) -> ResponseReturnValue:
    """End a schedule; its jobs stay."""
    require_token()
    schedules.delete_schedule(current_session(), current_caller().project_id, _read_id(schedule_id))
    return redirect(url_for("ui.schedules.show_schedules"), 303)


def _act(schedule_id: str, deed: Callable[..., object]) -> ResponseReturnValue:
    require_token()
    deed(current_session(), current_caller().project_id, _read_id(schedule_id))
    return _back_to(schedule_id)


def _back_to(schedule_id: str) -> ResponseReturnValue:
    return redirect(url_for("ui.schedules.show_schedule", schedule_id=schedule_id), 303)


def _keeper() -> Keeper:
    return Keeper(current_caller(), current_runtime().settings.stores)


def _read_id(text: str) -> ScheduleId:
    value = decode(SCHEDULE_PREFIX, text)
    if value is None:
        raise NotFound("There is no such schedule in this project.", param="schedule_id")
    return ScheduleId(value)
