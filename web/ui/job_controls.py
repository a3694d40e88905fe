"""What may be done with a job from its page, beyond stopping it."""

from contextlib import suppress

from flask import Blueprint, redirect, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import StateConflict
from runner.services import job_edits
from runner.services.job_edits import JobChange
from web.request_scope import current_session
from web.ui.guard import current_caller, require_session, require_token
from web.ui.jobs import read_job_id
from web.ui.plan_form import RUN_HOURS, START_AFTER, read_hours, read_priority, read_start

bp = Blueprint("job_controls", __name__)
bp.before_request(require_session)


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
