"""``/api/usage``: what the caller's project has spent, by day, model, key, tag, schedule or job."""

from datetime import date

from flask import Blueprint, Response, request
from flask.typing import ResponseReturnValue

from runner.domain.errors import InvalidRequest
from runner.services import cost_exports
from runner.services.costs import (
    Scope,
    Spending,
    latencies,
    read_dimensions,
    spent_by,
    spent_in_all,
)
from web.api.objects import SpendingObject, SpentGroup, SpentObject
from web.api.wire import CURRENCY, decimal_text, joules, latency_object
from web.auth import current_caller
from web.downloads import send_pieces
from web.request_scope import current_session

bp = Blueprint("usage", __name__)

FORMATS = ("json", *cost_exports.FORMATS)
_DEFAULT_GROUPS = "day"


@bp.get("/usage")
def show_usage() -> ResponseReturnValue:
    """What was spent, by groups: of ended jobs all, of running ones to a minute or so ago."""
    session, scope = current_session(), _read_scope()
    by = read_dimensions(request.args.get("group_by", _DEFAULT_GROUPS))
    wanted = request.args.get("format", "json")
    if wanted not in FORMATS:
        raise InvalidRequest(
            f"format must be one of {', '.join(FORMATS)}.", code="invalid_value", param="format"
        )
    if wanted == "focus":
        return _save(cost_exports.focus_csv(session, scope), wanted)
    groups = spent_by(session, scope, by)
    if wanted == "csv":
        return _save(cost_exports.groups_csv(groups, by), wanted)
    if wanted == "parquet":
        return _save(cost_exports.groups_parquet(groups, by), wanted)
    found: SpendingObject = {
        "object": "usage",
        "first_day": None if scope.first is None else scope.first.isoformat(),
        "last_day": None if scope.last is None else scope.last.isoformat(),
        "group_by": list(by),
        "data": [_group(group, by) for group in groups],
        "total": _spent(spent_in_all(session, scope)),
        "latency_ms": latency_object(latencies(session, scope)),
    }
    return found


def _read_scope() -> Scope:
    told = request.args
    return Scope(
        project_id=current_caller().project_id,
        first=_day("from"),
        last=_day("to"),
        key=told.get("key"),
        model=told.get("model"),
        tag=told.get("tag"),
        schedule=told.get("schedule"),
        job=told.get("job"),
    )


def _day(name: str) -> date | None:
    text = request.args.get(name)
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidRequest(
            f"{name} must be a day such as 2026-11-30.", code="invalid_value", param=name
        ) from None


def _save(content: bytes, kind: str) -> Response:
    name = f"costs.{cost_exports.SUFFIXES[kind]}"
    return send_pieces([content], name, cost_exports.MIME_TYPES[kind])


def _group(group: Spending, by: tuple[str, ...]) -> SpentGroup:
    return {"group": dict(zip(by, group.group, strict=True)), **_spent(group)}


def _spent(spent: Spending) -> SpentObject:
    return {
        "lines": spent.lines,
        "attempts": spent.attempts,
        "input_tokens": spent.prompt_tokens,
        "cached_input_tokens": spent.cached_tokens,
        "output_tokens": spent.output_tokens,
        "device_seconds": spent.device_us / 1e6,
        "joules": joules(spent.energy_uj, spent.metered_lines),
        "cost": {
            "currency": CURRENCY,
            "billed": decimal_text(spent.billed_nano),
            "run": decimal_text(spent.run_cost_nano),
            "billed_nano": spent.billed_nano,
            "run_nano": spent.run_cost_nano,
            "margin": decimal_text(spent.margin_nano),
            "margin_nano": spent.margin_nano,
        },
    }
