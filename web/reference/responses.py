"""What operations answer: successes by type, errors by status."""

from http import HTTPStatus
from typing import Any

from web.api.objects import ErrorEnvelope, Problem, Unready

Schema = dict[str, Any]

_REQUEST_ID = {
    "x-request-id": {
        "description": "The id of the request, as in the server's log.",
        "schema": {"type": "string", "pattern": "^req_[0-9a-z]{26}$"},
        "required": True,
    }
}
_TEXT = {"schema": {"type": "string"}}
_RETRY_AFTER: Schema = {"Retry-After": {"schema": {"type": "string", "pattern": "^[0-9]+$"}}}
_SENTENCES = {
    206: "The range that was asked for.",
    304: "Nothing has changed since the answer whose ETag was sent.",
    400: "The request is wrong; the error names what.",
    401: "No key, or one that is unknown, expired or revoked.",
    403: "The caller may not do this.",
    404: "There is no such thing in the caller's project.",
    410: "The lines are there no more; the error tells since when, and why.",
    413: "More bytes than are accepted.",
    415: "The body is compressed.",
    416: "The range lies outside the file.",
    429: "The key has sent the requests that it may send in a minute.",
    500: "The server failed; the fault is logged.",
    503: "A service that is needed is away.",
    507: "The disk of the database is full; nothing was kept.",
}
_HEADERS: dict[int, Schema] = {
    206: {"Content-Range": _TEXT},
    401: {"WWW-Authenticate": _TEXT},
    416: {"Content-Range": _TEXT},
    429: _RETRY_AFTER
    | {f"x-ratelimit-{name}-requests": _TEXT for name in ("limit", "remaining", "reset")},
    503: _RETRY_AFTER,
    507: _RETRY_AFTER,
}


def answer_of(kind: type | str, sentence: str, also: tuple[str, ...] = ()) -> Schema:
    """A success that holds a type of ``web.api.objects``, or bytes of a media type."""
    content = _content(kind)
    for media in also:
        content |= _content(media)
    return {"description": sentence, "headers": _REQUEST_ID, "content": content}


def error_answers(statuses: set[int], path: str, kind: type | str) -> Schema:
    """The other answers of a route, in order: its errors, a part of it, or that nothing changed."""
    return {str(status): _answer(status, path, kind) for status in sorted(statuses)}


def _answer(status: int, path: str, kind: type | str) -> Schema:
    headers = _REQUEST_ID | _HEADERS.get(status, {})
    answer: Schema = {"description": _SENTENCES[status], "headers": headers}
    if status == HTTPStatus.PARTIAL_CONTENT:
        answer["content"] = _content(kind)
    elif status == HTTPStatus.SERVICE_UNAVAILABLE and path == "/readyz":
        answer["content"] = _content(Unready) | _problem()
    elif status >= HTTPStatus.BAD_REQUEST:
        answer["content"] = _content(ErrorEnvelope) if path.startswith("/v1/") else _problem()
    return answer


def _problem() -> Schema:
    return {"application/problem+json": {"schema": _ref(Problem)}}


def _content(kind: type | str) -> Schema:
    if isinstance(kind, str):
        shape = "object" if kind == "application/json" else "string"
        return {kind: {"schema": {"type": shape}}}
    return {"application/json": {"schema": _ref(kind)}}


def _ref(kind: type) -> Schema:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}
