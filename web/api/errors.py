"""The one place that turns an exception into an answer.

Under ``/v1`` it is the error envelope of OpenAI's API, elsewhere a problem of RFC 9457.
"""

import logging
import traceback
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.exceptions import HTTPException

from runner.domain.errors import (
    InvalidRequest,
    NotFound,
    RunnerError,
    StateConflict,
    TooLarge,
    Unauthenticated,
)
from web.request_scope import current_request_id, current_runtime

logger = logging.getLogger(__name__)

# The official client repeats a 409 by itself, so a conflict of states is a plain 400.
_STATUSES: dict[type[RunnerError], int] = {
    InvalidRequest: 400,
    StateConflict: 400,
    Unauthenticated: 401,
    NotFound: 404,
    TooLarge: 413,
}
_RETRY_SECONDS = "5"


@dataclass(frozen=True, slots=True)
class _Failure:
    status: int
    message: str
    code: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


def register(app: Flask) -> None:
    """Handle every exception of an application."""
    app.register_error_handler(RunnerError, _expected)
    app.register_error_handler(HTTPException, _http)
    app.register_error_handler(Exception, _unexpected)


def _expected(error: RunnerError) -> Response:
    status = _STATUSES.get(type(error))
    if status is None:
        return _unexpected(error)
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    return _answer(_Failure(status, error.message, error.code, error.param, headers))


def _http(error: HTTPException) -> Response:
    """What Flask itself refuses: unknown routes, wrong methods, bodies beyond the limits."""
    status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    code = error.name.lower().replace(" ", "_")
    headers = {name: value for name, value in error.get_headers() if name != "Content-Type"}
    return _answer(_Failure(status, error.description or error.name, code, headers=headers))


def _unexpected(error: Exception) -> Response:
    """Our own fault, or the database is away. Only frames are logged: messages may hold prompts."""
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
        headers = {"Retry-After": _RETRY_SECONDS}
        return _answer(_Failure(503, " ".join(problems), "unavailable", headers=headers))
    return _answer(_Failure(500, "The server failed; the fault is logged.", "internal_error"))


def _names(error: BaseException) -> str:
    cause = error.__cause__
    name = type(error).__name__
    return name if cause is None else f"{name} from {_names(cause)}"


def _answer(failure: _Failure) -> Response:
    envelope = request.path.startswith("/v1/")
    response = jsonify(_envelope(failure) if envelope else _problem(failure))
    response.status_code = failure.status
    response.headers.update(failure.headers)
    if not envelope:
        response.mimetype = "application/problem+json"
    return response


def _envelope(failure: _Failure) -> dict[str, Any]:
    match failure.status:
        case HTTPStatus.UNAUTHORIZED:
            kind = "authentication_error"
        case status if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            kind = "server_error"
        case _:
            kind = "invalid_request_error"
    return {
        "error": {
            "message": failure.message,
            "type": kind,
            "param": failure.param,
            "code": failure.code,
        }
    }


def _problem(failure: _Failure) -> dict[str, Any]:
    return {
        "type": "about:blank",
        "title": HTTPStatus(failure.status).phrase,
        "status": failure.status,
        "detail": failure.message,
        "code": failure.code,
        "param": failure.param,
        "request_id": current_request_id(),
    }
