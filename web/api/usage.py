"""``/api/usage``: what the caller's project has spent, by day, model, key, tag, schedule or job."""

import re
from datetime import date

from flask import Blueprint, Response, request
from flask.typing import ResponseReturnValue

from runner.domain.errors import InvalidRequest
from runner.services import cost_exports, jobs
from runner.services.costs import (
    Scope,
    Spent,
    latencies,
    read_dimensions,
    spent_by,
    spent_in_all,
)
from runner.services.line_usage import LineUsage, line_usage
from runner.services.pages import cut
from web.api.lists import read_limit
from web.api.report_objects import (
    LineUsageList,
    LineUsageObject,
    SpendingObject,
    SpentGroup,
    SpentObject,
)
from web.api.wire import decimal_text, exact_cost, joules, latency_object, read_batch_id
from web.auth import current_caller
from web.downloads import send_pieces
from web.request_scope import current_session

bp = Blueprint("usage", __name__)

_INDEX = re.compile(r"-1|[0-9]{1,9}", re.ASCII)

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


@bp.get("/jobs/<job_id>/usage")
def show_lines(job_id: str) -> ResponseReturnValue:
    """What each line that has succeeded took, in line order."""
    wanted = read_batch_id(job_id, "job_id")
    jobs.get_job(current_session(), current_caller().project_id, wanted)
    limit = read_limit(default=100, maximum=1000)
    page = cut(line_usage(current_session(), wanted, _after(), limit + 1), limit)
    found: LineUsageList = {
        "object": "list",
        "data": [_line(line) for line in page.items],
        "last_index": page.items[-1].idx if page.items else None,
        "has_more": page.has_more,
    }
    return found


def _after() -> int:
    """The index that a page begins after."""
    text = request.args.get("after", "-1")
    if not _INDEX.fullmatch(text):
        raise InvalidRequest(
            "after must be the index of a line.", code="invalid_type", param="after"
        )
    return int(text)


def _line(line: LineUsage) -> LineUsageObject:
    per_token = line.per_token_us
    return {
        "index": line.idx,
        "custom_id": line.custom_id,
        "attempt": line.attempt,
        "input_tokens": line.prompt_tokens,
        "computed_input_tokens": line.computed_tokens,
        "cached_input_tokens": line.cached_tokens,
        "output_tokens": line.output_tokens,
        "queue_ms": line.queue_us / 1000,
        "prefill_ms": line.prefill_us / 1000,
        "first_token_ms": line.first_token_us / 1000,
        "decode_ms": line.decode_us / 1000,
        "per_token_ms": None if per_token is None else per_token / 1000,
        "total_ms": line.total_us / 1000,
        "device_ms": line.device_us / 1000,
        "preemptions": line.preemptions,
        "recomputed_tokens": line.recomputed_tokens,
        "joules": joules(line.energy_uj or 0, 0 if line.energy_uj is None else 1),
        "reused": line.reused,
        "saved": decimal_text(line.saved_nano),
        "cost": exact_cost(line.billed_nano, line.run_cost_nano),
    }


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


def _group(group: Spent, by: tuple[str, ...]) -> SpentGroup:
    return {"group": dict(zip(by, group.group, strict=True)), **_spent(group)}


def _spent(spent: Spent) -> SpentObject:
    return {
        "lines": spent.lines,
        "attempts": spent.attempts,
        "input_tokens": spent.prompt_tokens,
        "cached_input_tokens": spent.cached_tokens,
        "output_tokens": spent.output_tokens,
        "device_seconds": spent.device_us / 1e6,
        "joules": joules(spent.energy_uj, spent.metered_lines),
        "reused": {"lines": spent.reused_lines, "saved": decimal_text(spent.saved_nano)},
        "cost": exact_cost(spent.billed_nano, spent.run_cost_nano),
    }
