"""A server in between that passes everything on and spoils one thing in JSON answers."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from werkzeug.serving import make_server

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

Spoil = Callable[[dict[str, Any]], object]
"""Changes the object of a JSON answer in place."""


@contextmanager
def spoiled(url: str, spoil: Spoil) -> Iterator[str]:
    """The address of a server that answers like another one but for one thing."""
    behind = urlsplit(url).netloc

    def application(environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        status, headers, body = _ask(behind, environ)
        if headers.get("Content-Type", "").startswith("application/json"):
            value = json.loads(body)
            spoil(value)
            body = json.dumps(value).encode()
        kept = {name: text for name, text in headers.items() if name in ("Content-Type",)}
        start(status, [*kept.items(), ("Content-Length", str(len(body)))])
        return [body]

    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _ask(behind: str, environ: "WSGIEnvironment") -> tuple[str, dict[str, str], bytes]:
    """Pass a request on: the status line, the headers and the body of its answer."""
    query = f"?{environ['QUERY_STRING']}" if environ.get("QUERY_STRING") else ""
    headers = {
        name.removeprefix("HTTP_").replace("_", "-"): text
        for name, text in environ.items()
        if name.startswith("HTTP_") and name not in ("HTTP_HOST", "HTTP_ACCEPT_ENCODING")
    }
    if environ.get("CONTENT_TYPE"):
        headers["Content-Type"] = environ["CONTENT_TYPE"]
    sent = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    connection = HTTPConnection(behind, timeout=120)
    try:
        connection.request(environ["REQUEST_METHOD"], environ["PATH_INFO"] + query, sent, headers)
        answer = connection.getresponse()
        status = f"{answer.status} {answer.reason}"
        return status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
