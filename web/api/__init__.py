"""The programs' side: ``/v1`` speaks OpenAI's wire contract, ``/api`` what is ours alone."""

from flask import Blueprint, Flask

from web.api import (
    batches,
    budgets,
    errors,
    estimates,
    file_tags,
    files,
    health,
    jobs,
    metrics,
    models,
    retention,
    retries,
    schedules,
    uploads,
    usage,
    webhooks,
    workers,
)
from web.auth import require_key, tell_allowance


def register(app: Flask) -> None:
    """Add the routes and the error handlers to an application."""
    errors.register(app)
    app.register_blueprint(health.bp)
    app.register_blueprint(metrics.bp)
    app.register_blueprint(_keyed("v1", files.bp, uploads.bp, batches.bp, models.bp))
    parts = (
        usage.bp,
        jobs.bp,
        retries.bp,
        retention.bp,
        estimates.bp,
        budgets.bp,
        schedules.bp,
        file_tags.bp,
        webhooks.bp,
        workers.bp,
    )
    app.register_blueprint(_keyed("api", *parts))


def _keyed(name: str, *parts: Blueprint) -> Blueprint:
    """Blueprints under ``/name``, all of whose routes need a key."""
    whole = Blueprint(name, __name__, url_prefix=f"/{name}")
    whole.before_request(require_key)
    whole.after_request(tell_allowance)
    for part in parts:
        whole.register_blueprint(part)
    return whole
