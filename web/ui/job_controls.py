"""What may be done with a job from its page, beyond stopping it."""

from contextlib import suppress

from flask import Blueprint, redirect, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import StateConflict
from runner.services import contents, job_edits, jobs, retries
from runner.services.job_edits import JobChange
from runner.services.retries import RetryLines
from web.downloads import send_pieces
from web.request_scope import current_runtime, current_session
from web.ui.guard import current_caller, require_session, require_token
from web.ui.jobs import outer_id, read_job_id
from web.ui.plan_form import RUN_HOURS, START_AFTER, read_hours, read_priority, read_start

bp = Blueprint("job_controls", __name__)
bp.before_request(require_session)


@bp.post("/jobs/<job_id>/retry")
def retry_job(job_id: str) -> ResponseReturnValue:
    """Run what has no answer as a job of its own, and show that; where there is nothing to retry,
    or it is retried already, show the job as it is."""
    require_token()
    shard_lines = current_runtime().settings.shard_lines
    wanted, caller = read_job_id(job_id), current_caller()
    shown = job_id
    with suppress(StateConflict):
        child = retries.retry_job(current_session(), caller, wanted, RetryLines.ALL, shard_lines)
        shown = outer_id(child)
    return redirect(url_for("ui.jobs.show_job", job_id=shown), 303)


@bp.get("/jobs/<job_id>/merged")
def save_merged(job_id: str) -> ResponseReturnValue:
    """The answers of a job and its retries as one, to save."""
    job = jobs.get_job(current_session(), current_caller().project_id, read_job_id(job_id))
    lines = retries.read_merged(current_runtime().sessions, job.id, contents.OUTPUT)
    return send_pieces(lines, f"{job_id}_merged_output.jsonl", "application/x-ndjson")


@bp.post("/jobs/<job_id>/edit")
def edit_job(job_id: str) -> ResponseReturnValue:
    """Change a job's priority and hours to what the form says (empty means none), unless it has
    ended meanwhile."""
    require_token()
    given = {START_AFTER: read_start(request.form), RUN_HOURS: read_hours(request.form)}
    change = JobChange(
        priority=read_priority(request.form),
        start_after=read_start(request.form),
        run_hours=read_hours(request.form),
        clear=frozenset(name for name, value in given.items() if value is None),
    )
    project_id = current_caller().project_id
    with suppress(StateConflict):
        job_edits.edit_job(current_session(), project_id, read_job_id(job_id), change)
    return redirect(url_for("ui.jobs.show_job", job_id=job_id), 303)
