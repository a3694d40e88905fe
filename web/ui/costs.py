"""The page of costs: what the project has spent, by day and by whatever is chosen."""

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

from flask import Blueprint, render_template, request
from flask.typing import ResponseReturnValue

from runner.domain.errors import InvalidRequest
from runner.domain.ids import JOB_PREFIX, decode
from runner.domain.latency import Measure
from runner.services import cost_exports, files
from runner.services.costs import Scope, Spent, latencies, spent_by, spent_in_all
from web.downloads import send_pieces
from web.request_scope import current_session
from web.ui.charts import Chart, Series, biggest, days_between, side_by_side, stacked
from web.ui.guard import current_caller, require_session
from web.ui.words import count, money

bp = Blueprint("costs", __name__)
bp.before_request(require_session)

_SHOWN_DAYS = 30
_TOP_JOBS = 10
_FILTERS = ("model", "tag", "schedule")
_TIMES = (
    ("In the engine’s queue", Measure.QUEUE),
    ("To the first token", Measure.FIRST_TOKEN),
    ("Per token after it", Measure.PER_TOKEN),
    ("To the last token", Measure.TOTAL),
)


@bp.get("/costs")
def show_costs() -> ResponseReturnValue:
    """Spending, tokens, margin, latency and the dearest jobs of some days."""
    session, scope = current_session(), _read_scope()
    assert scope.first is not None, "a page shows certain days"
    assert scope.last is not None, "a page shows certain days"
    days = days_between(scope.first, scope.last)
    by_model = spent_by(session, scope, ("day", "model"))
    by_day = spent_by(session, scope, ("day",))
    times = latencies(session, scope)
    return render_template(
        "costs.html",
        scope=scope,
        choices=_choices(),
        total=spent_in_all(session, scope),
        spend=_spend(days, by_model),
        tokens=_tokens(days, by_day),
        margin=_margin(days, by_day),
        by_day=by_day,
        times=[(name, times[measure]) for name, measure in _TIMES],
        top_jobs=_top_jobs(scope),
        money=money,
        count=count,
        asked={name: value for name, value in request.args.items() if value},
    )


@bp.get("/costs/export")
def save_costs() -> ResponseReturnValue:
    """The same days as a file: sums by day, model and job, or charges as FOCUS wants them."""
    session, scope = current_session(), _read_scope()
    kind, by = request.args.get("format", "csv"), ("day", "model", "key", "schedule", "job")
    match kind:
        case "csv":
            content = cost_exports.groups_csv(spent_by(session, scope, by), by)
        case "parquet":
            content = cost_exports.groups_parquet(spent_by(session, scope, by), by)
        case "focus":
            content = cost_exports.focus_csv(session, scope)
        case _:
            raise InvalidRequest("Choose csv, parquet or focus.", param="format")
    name = f"costs.{cost_exports.SUFFIXES[kind]}"
    return send_pieces([content], name, cost_exports.MIME_TYPES[kind])


def _read_scope() -> Scope:
    """What the form asks for: the last days unless it names others."""
    last = _day("to") or datetime.now(UTC).date()
    first = _day("from") or last - timedelta(days=_SHOWN_DAYS - 1)
    model, tag, schedule = (request.args.get(name) or None for name in _FILTERS)
    project_id = current_caller().project_id
    return Scope(project_id, first, last, model=model, tag=tag, schedule=schedule)


def _day(name: str) -> date | None:
    text = request.args.get(name)
    if not text:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest("A day is written as 2026-11-30.", param=name) from None


def _choices() -> dict[str, list[str]]:
    """What there is to filter by."""
    whole = Scope(current_caller().project_id)
    found = {name: spent_by(current_session(), whole, (name,)) for name in _FILTERS}
    return {
        name: sorted(group.group[0] for group in groups if group.group[0])
        for name, groups in found.items()
    }


def _spend(days: tuple[date, ...], groups: list[Spent]) -> Chart:
    models: dict[str, dict[date, int]] = {}
    for group in groups:
        day, model = group.group
        models.setdefault(model or "", {})[_date(day)] = group.billed_nano
    series = [Series(model, values) for model, values in models.items()]
    return stacked(days, biggest(series), money)


def _tokens(days: tuple[date, ...], by_day: list[Spent]) -> Chart:
    series = (
        _series("computed input", by_day, lambda day: day.prompt_tokens - day.cached_tokens),
        _series("cached input", by_day, lambda day: day.cached_tokens),
        _series("output", by_day, lambda day: day.output_tokens),
    )
    return stacked(days, series, count)


def _margin(days: tuple[date, ...], by_day: list[Spent]) -> Chart:
    series = (
        _series("billed", by_day, lambda day: day.billed_nano),
        _series("cost to run", by_day, lambda day: day.run_cost_nano),
    )
    return side_by_side(days, series, money)


def _series(name: str, by_day: list[Spent], value: Callable[[Spent], int]) -> Series:
    return Series(name, {_date(day.group[0]): value(day) for day in by_day})


def _date(text: str | None) -> date:
    assert text is not None, "every row of the roll-up has a day"
    return date.fromisoformat(text)


def _top_jobs(scope: Scope) -> list[tuple[str, str, Spent]]:
    """The dearest jobs: the id of each, its file's name, its sums."""
    groups = spent_by(current_session(), scope, ("job",))[:_TOP_JOBS]
    ids = {group.group[0]: decode(JOB_PREFIX, group.group[0] or "") for group in groups}
    names = files.names_of_inputs(current_session(), [one for one in ids.values() if one])
    return [
        (name, names.get(uuid, name), group)
        for group in groups
        if (name := group.group[0]) is not None and (uuid := ids[name]) is not None
    ]
