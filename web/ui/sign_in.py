"""Signing in with an API key, and out again."""

from flask import Blueprint, Response, make_response, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import Unauthenticated
from runner.domain.ids import JOB_PREFIX, decode
from runner.services.web_sessions import begin_session, end_session
from web.request_scope import current_session
from web.ui import csrf, guard

bp = Blueprint("sign_in", __name__)


@bp.get("/signin")
def show_form() -> ResponseReturnValue:
    """The form; ``job`` of the query is where to go afterwards."""
    return _form(request.args.get("job", ""))


@bp.post("/signin")
def sign_in() -> ResponseReturnValue:
    """Begin a session with a new token; whatever session the browser had is over."""
    csrf.check_token(guard.guest_token())
    job = request.form.get("job", "")
    try:
        token = begin_session(current_session(), request.form.get("key", "").strip())
    except Unauthenticated as error:
        return _form(job, error.message, 401)
    end_session(current_session(), guard.session_token())
    return guard.keep_session(_go(job), token)


@bp.post("/signout")
def sign_out() -> ResponseReturnValue:
    """End the session here and in the database."""
    guard.require_token()
    end_session(current_session(), guard.session_token())
    return guard.drop_session(_go_to("ui.sign_in.show_form"))


def _form(job: str, problem: str | None = None, status: int = 200) -> Response:
    page = render_template("sign_in.html", job=job, problem=problem)
    return guard.keep_guest(make_response(page, status))


def _go(job: str) -> Response:
    """On to the job that was wanted, if the text is an id at all; else to the list."""
    if decode(JOB_PREFIX, job) is None:
        return _go_to("ui.jobs.show_jobs")
    return make_response(redirect(url_for("ui.jobs.show_job", job_id=job), 303))


def _go_to(endpoint: str) -> Response:
    return make_response(redirect(url_for(endpoint), 303))
