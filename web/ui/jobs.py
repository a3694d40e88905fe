"""The pages of jobs: the list with its upload, one job, and what may be done there."""

import hashlib
from contextlib import suppress
from typing import Any

from flask import Blueprint, Response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.budgets import EXCEEDED, read_amount
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JOB_PREFIX, SCHEDULE_PREFIX, JobId, decode, encode
from runner.domain.lines import ENDPOINTS
from runner.domain.reuse import Dedupe
from runner.domain.windows import DEFAULT_WINDOW
from runner.services import alerts, contents, files, jobs, line_errors, pausing, reports, schedules
from runner.services.files import FileRecord
from runner.services.job_records import JobRecord
from runner.services.jobs import NewJob
from runner.services.keys import Caller
from web.downloads import send_pieces
from web.request_scope import current_runtime, current_session
from web.ui import csrf
from web.ui.guard import current_caller, require_session, require_token, session_token
from web.ui.live import next_poll
from web.ui.plan_form import (
    PLAN_FIELDS,
    WINDOW,
    WINDOWS,
    read_hours,
    read_priority,
    read_start,
)
from web.upload_form import open_form

bp = Blueprint("jobs", __name__)
bp.before_request(require_session)

_PAGE_JOBS = 25
_ERRORS_SHOWN = 20
_ENDPOINT, _ON_INVALID, _DEDUPE = "endpoint", "on_invalid", "dedupe"
_LINES = "application/x-ndjson"


@bp.app_template_filter("job_id")
def outer_id(job: JobRecord) -> str:
    """The id of a job as in its page's address."""
    return encode(JOB_PREFIX, job.id)


@bp.app_template_filter("parent_id")
def outer_parent_id(job_id: JobId) -> str:
    """The id of what a job retries, as in its page's address."""
    return encode(JOB_PREFIX, job_id)


@bp.get("/")
def show_jobs() -> ResponseReturnValue:
    """The list, newest first, and the way to add to it."""
    base_url = request.host_url + "v1"
    return render_template(
        "jobs.html", **_page(), endpoints=ENDPOINTS, windows=WINDOWS, base_url=base_url
    )


@bp.get("/live")
def show_list() -> ResponseReturnValue:
    """The list alone, for the page that shows it already."""
    return render_template("job_list.html", **_page())


@bp.post("/jobs")
def create_job() -> ResponseReturnValue:
    """Store an upload while it arrives, and make it a job."""
    file, fields = _store_upload(current_caller())
    job = jobs.create_job(current_session(), current_caller(), _new_job(file, fields))
    return redirect(url_for("ui.jobs.show_job", job_id=outer_id(job)), 303)


@bp.get("/jobs/<job_id>")
def show_job(job_id: str) -> ResponseReturnValue:
    """One job with all its figures."""
    report = reports.job_report(current_session(), current_caller().project_id, read_job_id(job_id))
    errors = line_errors.first_errors(current_runtime().sessions, report.job, _ERRORS_SHOWN)
    shown = _shown(report.job)
    return render_template("job.html", report=report, errors=errors, **shown)


@bp.get("/jobs/<job_id>/live")
def show_progress(job_id: str) -> ResponseReturnValue:
    """What moves on a job's page; once the stage has changed, the page is loaded anew."""
    job = jobs.get_job(current_session(), current_caller().project_id, read_job_id(job_id))
    if request.args.get("seen", "").partition(" ")[0] != _stage(job):
        return Response(headers={"HX-Refresh": "true"})
    return render_template("job_progress.html", **_shown(job))


@bp.post("/jobs/<job_id>/cancel")
def cancel_job(job_id: str) -> ResponseReturnValue:
    """Stop a job; one that has ended meanwhile is shown as it is."""
    require_token()
    with suppress(StateConflict):
        jobs.cancel_job(current_session(), current_caller().project_id, read_job_id(job_id))
    return redirect(url_for("ui.jobs.show_job", job_id=job_id), 303)


@bp.post("/jobs/<job_id>/pause")
def pause_job(job_id: str) -> ResponseReturnValue:
    """Pause a job; one that has ended meanwhile is shown as it is."""
    require_token()
    with suppress(StateConflict):
        pausing.pause_job(current_session(), current_caller().project_id, read_job_id(job_id))
    return redirect(url_for("ui.jobs.show_job", job_id=job_id), 303)


@bp.post("/jobs/<job_id>/resume")
def resume_job(job_id: str) -> ResponseReturnValue:
    """Let a paused job go on, with another limit if one is given; an ended one is shown as is."""
    require_token()
    text = request.form.get("max_cost", "").strip()
    limit = read_amount(text, "max_cost") if text else None
    wanted, project_id = read_job_id(job_id), current_caller().project_id
    try:
        pausing.resume_job(current_session(), project_id, wanted, limit)
    except StateConflict as conflict:
        if conflict.code == EXCEEDED:  # told, and the limit stays as it was
            raise
    return redirect(url_for("ui.jobs.show_job", job_id=job_id), 303)


@bp.get("/jobs/<job_id>/output")
def save_output(job_id: str) -> ResponseReturnValue:
    """The lines that have succeeded so far, to save."""
    return _send_view(job_id, contents.OUTPUT)


@bp.get("/jobs/<job_id>/errors")
def save_errors(job_id: str) -> ResponseReturnValue:
    """The lines that have failed so far, to save."""
    return _send_view(job_id, contents.ERROR)


def _store_upload(caller: Caller) -> tuple[FileRecord, dict[str, str]]:
    """The file of a form, and its fields; none of it is stored before the form proves ours."""
    max_bytes = current_runtime().settings.max_file_bytes
    form = open_form(max_bytes, (csrf.FIELD, _ENDPOINT, _ON_INVALID, _DEDUPE, *PLAN_FIELDS))
    upload = form.begin()
    csrf.check_token(session_token(), form.fields.get(csrf.FIELD, ""))
    if not upload.filename:
        raise InvalidRequest("Choose a file first.", param="file")
    file = files.create_file(current_session(), caller.project_id, upload, max_bytes)
    form.finish()
    return file, form.fields


def _page() -> dict[str, Any]:
    """A page of the list, for its templates."""
    project_id = current_caller().project_id
    after = request.args.get("after")
    cursor = None if after is None else read_job_id(after)
    page = jobs.list_jobs(current_session(), project_id, cursor, _PAGE_JOBS)
    names = files.names_of(current_session(), {job.input_file_id for job in page.items})
    risks = alerts.alerts_of(current_session(), [job.id for job in page.items])
    is_live = any(not job.state.is_terminal for job in page.items)
    poll = next_poll(hashlib.sha256(" ".join(map(_look, page.items)).encode()).hexdigest()[:16])
    return {
        "page": page,
        "names": names,
        "alerts": risks,
        "after": after,
        "poll": poll if is_live else None,
    }


def _shown(job: JobRecord) -> dict[str, Any]:
    """One job, for its templates."""
    names = files.names_of(current_session(), [job.input_file_id])
    schedule = None
    if job.schedule_id is not None:
        name = schedules.name_of(current_session(), job.schedule_id)
        schedule = (encode(SCHEDULE_PREFIX, job.schedule_id), name)
    poll = None if job.state.is_terminal else next_poll(_look(job))
    filename = names[job.input_file_id]
    return {"job": job, "filename": filename, "schedule": schedule, "poll": poll}


def _look(job: JobRecord) -> str:
    """A text that changes when what is shown of a running job does; it begins with the stage."""
    totals = job.totals
    place = f"{_stage(job)} {job.phase} {job.queue_position}"
    return f"{place} {job.total} {totals.succeeded} {totals.failed}"


def _stage(job: JobRecord) -> str:
    """What decides what can be done on a job's page."""
    return f"{job.state}-paused" if job.pause_reason else job.state.value


def _new_job(file: FileRecord, fields: dict[str, str]) -> NewJob:
    return NewJob(
        input_file_id=file.id,
        endpoint=fields.get(_ENDPOINT, ENDPOINTS[0]),
        completion_window=fields.get(WINDOW, DEFAULT_WINDOW),
        priority=read_priority(fields),
        start_after=read_start(fields),
        run_hours=read_hours(fields),
        request_sha256=hashlib.sha256(b"POST /jobs\n" + file.id.bytes).digest(),
        on_invalid=fields.get(_ON_INVALID, "fail"),
        dedupe=fields.get(_DEDUPE, Dedupe.OFF),
    )


def read_job_id(text: str) -> JobId:
    """The job that an outer id names."""
    value = decode(JOB_PREFIX, text)
    if value is None:
        raise NotFound("There is no such job in this project.", param="job_id")
    return JobId(value)


def _send_view(job_id: str, view: str) -> Response:
    job = jobs.get_job(current_session(), current_caller().project_id, read_job_id(job_id))
    lines = contents.read_view(current_runtime().sessions, job.id, view)
    return send_pieces(lines, f"{job_id}_{view}.jsonl", _LINES)
