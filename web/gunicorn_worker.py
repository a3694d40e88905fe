"""The worker class of gunicorn: what it refuses by itself is told in JSON, too.

Requests that cannot be read as HTTP never reach the application. gunicorn answers them with a page
of HTML that repeats parts of the request; a program that reads our errors would choke on it.
"""

import json
from http import HTTPStatus

from gunicorn import util
from gunicorn.workers.gthread import ThreadWorker

_ADVICE = {
    400: "The request is not well-formed HTTP; check its headers and its Content-Length.",
    414: "The address is too long; send long values in the body.",
    417: "This expectation is not supported; leave the Expect header out.",
    431: "The headers are too long or too many; send fewer.",
    501: "This transfer coding is not supported; send the body with a Content-Length.",
}
_FALLBACK = "The request could not be read."


class JsonWorker(ThreadWorker):  # type: ignore[misc]
    """gunicorn's threaded worker with another error page."""

    def handle_error(self, req: object, client: object, addr: object, exc: BaseException) -> None:
        """Have gunicorn find the status and write its log, then answer in its stead."""
        page = _UnsentPage(client)
        super().handle_error(req, page, addr, exc)
        try:
            util.write_nonblock(client, error_answer(page.status()))
        except OSError:
            self.log.debug("The client went away before it was told.")


def error_answer(status: int) -> bytes:
    """A whole HTTP answer that says what a status means, in the envelope of the API."""
    known = HTTPStatus(status)
    kind = "server_error" if status >= HTTPStatus.INTERNAL_SERVER_ERROR else "invalid_request_error"
    error = {
        "message": _ADVICE.get(status, _FALLBACK),
        "type": kind,
        "param": None,
        "code": known.phrase.lower().replace(" ", "_").replace("-", "_"),
    }
    body = json.dumps({"error": error}, separators=(",", ":"))
    head = (
        f"HTTP/1.1 {status} {known.phrase}",
        "Connection: close",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "X-Content-Type-Options: nosniff",
        "Cache-Control: no-store",
    )
    return "\r\n".join((*head, "", body)).encode("ascii")


class _UnsentPage:
    """A socket that keeps what is sent through it, and is the real one in all else."""

    def __init__(self, client: object) -> None:
        self._client = client
        self._sent = b""

    def __getattr__(self, name: str) -> object:
        return getattr(self._client, name)

    def sendall(self, data: bytes) -> None:
        """Keep the data back."""
        self._sent += data

    def status(self) -> int:
        """The status of the page that was written; 500 where there is none."""
        words = self._sent.split(maxsplit=2)
        return int(words[1]) if len(words) == 3 and words[1].isdigit() else 500
