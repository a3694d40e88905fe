"""Whether this process lives, and whether it can serve; both without a key."""

from flask import Blueprint
from flask.typing import ResponseReturnValue

from web.request_scope import current_runtime

bp = Blueprint("health", __name__)

_RETRY_SECONDS = "5"


@bp.get("/livez")
def live() -> ResponseReturnValue:
    """The process answers: no service is asked."""
    return {"status": "ok"}


@bp.get("/readyz")
def ready() -> ResponseReturnValue:
    """The services that requests need are there, too."""
    problems = current_runtime().problems()
    if problems:
        return {"status": "unavailable", "problems": problems}, 503, {"Retry-After": _RETRY_SECONDS}
    return {"status": "ok"}
