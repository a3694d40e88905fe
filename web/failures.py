"""What went wrong, as far as the asker may know: the one place that turns an exception into it.

How a failure is shown is up to the surface: the API answers JSON, the page HTML.
"""

import logging
import math
import traceback
from dataclasses import dataclass, field
from http import HTTPStatus

from flask import request
from werkzeug.exceptions import HTTPException

from runner.domain.errors import (
    Forbidden,
    Gone,
    InvalidRequest,
    NotFound,
    RunnerError,
    StateConflict,
    StorageFull,
    TooLarge,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from web.request_scope import current_request_id, current_runtime

logger = logging.getLogger(__name__)

# The official client repeats a 409 by itself, so a conflict of states is a plain 400.
_STATUSES: dict[type[RunnerError], int] = {
    InvalidRequest: 400,
    StateConflict: 400,
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Gone: 410,
    TooLarge: 413,
    TooManyRequests: 429,
    Unavailable: 503,
    StorageFull: 507,
}
# How soon the same request may do.
_RETRY_SECONDS = {503: "5", 507: "60"}


@dataclass(frozen=True, slots=True)
class Failure:
    """An answer that is an error: its HTTP status, a sentence, a code and where it applies."""

    status: int
    message: str
    code: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def failure_of(error: Exception) -> Failure:
    """What to answer to an exception; one that is not expected is logged."""
    if isinstance(error, HTTPException):
        return _http(error)
    outage = current_runtime().outage_of(error)
    expected = error if outage is None else outage
    if outage is not None:
        _log_outage(error, outage)
    if isinstance(expected, RunnerError) and type(expected) in _STATUSES:
        return _expected(expected)
    return _unexpected(error)


def _expected(error: RunnerError) -> Failure:
    status = _STATUSES[type(error)]
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    if status in _RETRY_SECONDS:
        headers = {"Retry-After": _RETRY_SECONDS[status]}
    if isinstance(error, TooManyRequests):
        # In whole seconds for everybody, and exactly for OpenAI's clients.
        headers = {
            "Retry-After": str(math.ceil(error.wait_seconds)),
            "Retry-After-Ms": str(math.ceil(error.wait_seconds * 1000)),
        }
    return Failure(status, error.message, error.code, error.param, headers)


def _http(error: HTTPException) -> Failure:
    """What Flask itself refuses: unknown routes, wrong methods, bodies beyond the limits."""
    status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    code = error.name.lower().replace(" ", "_")
    headers = {name: value for name, value in error.get_headers() if name != "Content-Type"}
    return Failure(status, error.description or error.name, code, headers=headers)


def _unexpected(error: Exception) -> Failure:
    """Our own fault, or an old schema. Only frames are logged: messages may hold prompts."""
    logger.error(
        "%s in %s %s\n%s",
        _names(error),
        request.method,
        request.url_rule,
        "".join(traceback.format_tb(error.__traceback__)),
        extra={"action": "request_failed", "request_id": current_request_id()},
    )
    problems = current_runtime().problems()
    if problems:
        headers = {"Retry-After": _RETRY_SECONDS[503]}
        return Failure(503, " ".join(problems), "unavailable", headers=headers)
    return Failure(500, "The server failed; the fault is logged.", "internal_error")


def _log_outage(error: Exception, outage: RunnerError) -> None:
    """One line: an outage has many of them, and no frame of ours is at fault."""
    logger.error(
        "%s in %s %s: %s",
        _names(error),
        request.method,
        request.url_rule,
        outage.code,
        extra={"action": "outage", "request_id": current_request_id()},
    )


def _names(error: BaseException) -> str:
    cause = error.__cause__
    name = type(error).__name__
    return name if cause is None else f"{name} from {_names(cause)}"
