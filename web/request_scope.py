"""What lives as long as one request: its transaction, its id and the headers of every answer.

The transaction begins when a view first asks for a session. It is committed when the view has
succeeded, before anything of the answer is sent, and rolled back in every other case.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from flask import Flask, Response, current_app, g, request
from flask.json.provider import DefaultJSONProvider
from flask.typing import ResponseReturnValue

from runner.domain.ids import encode, new_uuid
from runner.failpoints import FailPoint, hit
from runner.runtime import Runtime
from web.metrics import WebMetrics
from web.request_body import BodyStream
from web.request_checks import refuse_unsound

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from sqlalchemy.orm import Session

_REQUEST_PREFIX = "req_"
_READING = ("GET", "HEAD", "OPTIONS")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _OrderedJson(DefaultJSONProvider):
    sort_keys = False


class ScopedFlask(Flask):
    """A Flask application on one runtime, whose requests are transactions."""

    json_provider_class = _OrderedJson

    def __init__(self, runtime: Runtime) -> None:
        super().__init__("web", static_folder=None)
        self.runtime = runtime
        self.url_map.merge_slashes = False  # its redirects would be pages, also for programs
        self.metrics = WebMetrics(self, runtime)
        self.before_request(refuse_unsound)
        self.after_request(_add_headers)
        self.teardown_request(_end_transaction)

    def wsgi_app(
        self, environ: "WSGIEnvironment", start_response: "StartResponse"
    ) -> Iterable[bytes]:
        """Answer one request of a server."""
        environ["wsgi.input"] = BodyStream(environ["wsgi.input"])
        return super().wsgi_app(environ, start_response)

    def dispatch_request(self) -> ResponseReturnValue:
        """Answer by the matching view, and commit what it did."""
        answer = super().dispatch_request()
        if "session" in g:
            current_session().commit()
            if request.method not in _READING:
                hit(FailPoint.ANSWER_AFTER_COMMIT)
        return answer


def current_runtime() -> Runtime:
    """The runtime of the application that answers this request."""
    return cast(ScopedFlask, current_app).runtime


def current_metrics() -> WebMetrics:
    """The figures of the process that answers this request."""
    return cast(ScopedFlask, current_app).metrics


def current_session() -> "Session":
    """The session of this request's transaction."""
    if "session" not in g:
        g.session = current_runtime().sessions()
    return cast("Session", g.session)


def current_request_id() -> str:
    """The id of this request, as in its answer and in the logs."""
    if "request_id" not in g:
        g.request_id = encode(_REQUEST_PREFIX, new_uuid())
    return cast(str, g.request_id)


def _add_headers(response: Response) -> Response:
    response.headers["x-request-id"] = current_request_id()
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def _end_transaction(_error: BaseException | None) -> None:
    session = g.pop("session", None)
    if session is not None:
        session.close()
