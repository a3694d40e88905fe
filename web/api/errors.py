"""How the API tells of a failure.

Under ``/v1`` it is the error envelope of OpenAI's API, elsewhere a problem of RFC 9457.
"""

from http import HTTPStatus
from typing import Literal

from flask import Flask, Response, jsonify, request

from web.api.objects import ErrorEnvelope, Problem
from web.failures import Failure, failure_of
from web.request_scope import current_request_id

_Kind = Literal["invalid_request_error", "authentication_error", "requests", "server_error"]


def register(app: Flask) -> None:
    """Handle every exception of an application."""
    app.register_error_handler(Exception, _answer)


def _answer(error: Exception) -> Response:
    failure = failure_of(error)
    envelope = request.path.startswith("/v1/")
    response = jsonify(_envelope(failure) if envelope else _problem(failure))
    response.status_code = failure.status
    response.headers.update(failure.headers)
    if not envelope:
        response.mimetype = "application/problem+json"
    return response


def _envelope(failure: Failure) -> ErrorEnvelope:
    kind: _Kind
    match failure.status:
        case HTTPStatus.UNAUTHORIZED:
            kind = "authentication_error"
        case HTTPStatus.TOO_MANY_REQUESTS:
            kind = "requests"
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


def _problem(failure: Failure) -> Problem:
    return {
        "type": "about:blank",
        "title": HTTPStatus(failure.status).phrase,
        "status": failure.status,
        "detail": failure.message,
        "code": failure.code,
        "param": failure.param,
        "request_id": current_request_id(),
    }
