"""The people's side: pages made on the server, which live without a script and better with one."""

from pathlib import Path

from flask import Blueprint, Flask

from web.ui import (
    budgets,
    costs,
    csrf,
    errors,
    guard,
    headers,
    job_controls,
    jobs,
    schedules,
    sign_in,
    webhooks,
    words,
    workers,
)

_STATIC = Path(__file__).parents[1] / "static"


def register(app: Flask) -> None:
    """Add the pages, and what is common to them, to an application."""
    bp = Blueprint("ui", __name__, static_folder=_STATIC, static_url_path="/static")
    bp.before_request(csrf.refuse_strangers)
    bp.after_request(headers.add)
    bp.context_processor(guard.shown_everywhere)
    bp.register_error_handler(Exception, errors.show)
    parts = (
        sign_in.bp,
        jobs.bp,
        job_controls.bp,
        schedules.bp,
        costs.bp,
        budgets.bp,
        webhooks.bp,
        workers.bp,
    )
    for part in parts:
        bp.register_blueprint(part)
    words.register(app)
    app.register_blueprint(bp)
