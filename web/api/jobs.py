"""``/api/jobs``: what the wire contract has no words for. Ids are those of the wire."""

from typing import Annotated

from flask import Blueprint, Response, request
from flask.typing import ResponseReturnValue
from pydantic import ConfigDict, Field

from runner.domain.latency import Measure
from runner.services import contents, job_edits, jobs, pausing, reports
from runner.services.job_edits import JobChange
from runner.services.reports import JobReport
from web.api.amounts import Money, read_money
from web.api.bodies import Body, read_body
from web.api.control_fields import Priority, RunHoursText, StartAfter, read_moment
from web.api.report_objects import ReportObject
from web.api.wire import (
    batch_object,
    decimal_text,
    exact_cost,
    joules,
    latency_object,
    read_batch_id,
    seconds,
    usage_object,
)
from web.auth import current_caller
from web.downloads import send_pieces
from web.request_scope import current_runtime, current_session

bp = Blueprint("jobs", __name__)

_LINES = "application/x-ndjson"


class EditJob(Body):
    """What may be changed of a job that has not ended; null takes a start or the hours away."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    priority: Priority = 0
    start_after: StartAfter | None = None
    run_hours: RunHoursText | None = None


@bp.patch("/jobs/<job_id>")
def edit_job(job_id: str) -> ResponseReturnValue:
    """Change a job's priority or hours while it is queued or runs."""
    project_id = current_caller().project_id
    wanted = jobs.get_job(current_session(), project_id, read_batch_id(job_id, "job_id")).id
    body = read_body(EditJob)
    change = JobChange(
        body.priority if "priority" in body.model_fields_set else None,
        read_moment(body.start_after, "start_after"),
        body.run_hours,
        frozenset(name for name in body.model_fields_set if getattr(body, name) is None),
    )
    return batch_object(job_edits.edit_job(current_session(), project_id, wanted, change))


class ResumeJob(Body):
    """How a job goes on."""

    max_cost: Annotated[Money | None, Field(description="Its limit from now on.")] = None


@bp.get("/jobs/<job_id>/report")
def show_report(job_id: str) -> ResponseReturnValue:
    """A job's tokens, money and latency, also while it runs."""
    wanted = read_batch_id(job_id, "job_id")
    report = reports.job_report(current_session(), current_caller().project_id, wanted)
    return _report_object(job_id, report)


@bp.get("/jobs/<job_id>/output")
def show_output(job_id: str) -> ResponseReturnValue:
    """The lines that have succeeded so far."""
    return _send_view(job_id, contents.OUTPUT)


@bp.get("/jobs/<job_id>/errors")
def show_errors(job_id: str) -> ResponseReturnValue:
    """The lines that have failed so far."""
    return _send_view(job_id, contents.ERROR)


@bp.post("/jobs/<job_id>/pause")
def pause_job(job_id: str) -> ResponseReturnValue:
    """Lease nothing more of a job until it is resumed.

    What has not begun is given back within a second; lines in an engine run to their end. The
    batch stays ``in_progress`` with the phase ``paused``, and its deadline stands still.
    """
    wanted = read_batch_id(job_id, "job_id")
    return batch_object(pausing.pause_job(current_session(), current_caller().project_id, wanted))


@bp.post("/jobs/<job_id>/resume")
def resume_job(job_id: str) -> ResponseReturnValue:
    """Let a paused job go on, with what was left of its window.

    ``max_cost`` is its limit from now on; a job that its budget stopped needs room for a line.
    """
    session, project_id = current_session(), current_caller().project_id
    wanted = jobs.get_job(session, project_id, read_batch_id(job_id, "job_id")).id
    body = read_body(ResumeJob) if request.get_data() else ResumeJob()
    limit = read_money(body.max_cost, "max_cost")
    return batch_object(pausing.resume_job(session, project_id, wanted, limit))


def _send_view(job_id: str, view: str) -> Response:
    wanted = read_batch_id(job_id, "job_id")
    job = jobs.get_job(current_session(), current_caller().project_id, wanted)
    lines = contents.read_view(current_runtime().sessions, job.id, view)
    return send_pieces(lines, f"{job_id}_{view}.jsonl", _LINES)


def _report_object(job_id: str, report: JobReport) -> ReportObject:
    totals, account, waste = report.job.totals, report.account, report.waste
    return {
        "job_id": job_id,
        "state": report.job.state,
        "model": report.job.model,
        "models": [
            {
                "model": model,
                "lines": share.succeeded,
                "usage": usage_object(share),
                "cost": exact_cost(share.billed_nano, share.run_cost_nano),
            }
            for model, share in report.models.items()
        ],
        "lines": {
            "total": report.job.total,
            "succeeded": totals.succeeded,
            "failed": totals.failed,
            "billed": account.lines,
        },
        "usage": usage_object(totals),
        "cost": exact_cost(totals.billed_nano, totals.run_cost_nano),
        "latency_ms": latency_object(
            {
                Measure.QUEUE: account.queue,
                Measure.FIRST_TOKEN: account.first_token,
                Measure.PER_TOKEN: account.per_token,
                Measure.TOTAL: account.total,
            }
        ),
        "device_seconds": account.device_us / 1e6,
        "joules": joules(account.energy_uj, account.metered_lines),
        "attempts": account.attempts,
        "wasted": {
            "attempts": waste.attempts,
            "device_seconds": waste.device_us / 1e6,
        },
        "preemptions": account.preemptions,
        "recomputed_tokens": account.recomputed_tokens,
        "lanes": [
            {"name": use.lane.name, "reason": use.lane.reason or None, "lines": use.lines}
            for use in account.lanes
        ],
        "truncated": {"lines": account.truncated_lines, "tokens": account.truncated_tokens},
        "reused": {
            "lines": account.reused_lines,
            "saved": decimal_text(account.saved_nano),
        },
        "alerts": [
            {"kind": told.kind, "message": told.message, "created_at": seconds(told.created_at)}
            for told in report.alerts
        ],
    }
