"""Trap 13: webhooks."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from runner.conformance.exam import Exam
from runner.conformance.requests import good_lines
from runner.conformance.verdicts import Fault, NotChecked, expect
from runner.domain.ids import JOB_PREFIX, decode
from runner.domain.webhooks import Event, body_of, headers_of, new_secret

_PATIENCE = 60.0  # seconds that a message may take
_POLL_SECONDS = 0.05  # what its end may wait for
_PATH = "/api/webhooks"

Message = tuple[bytes, dict[str, str]]


def unwrap_accepts(exam: Exam) -> str:
    """The client checks the signature of a message as it was sent, and reads it as an event.

    A server of ours that may not send to this host is checked by the function that signs; another
    has no way to be told of an address, so nothing can be said of it.
    """
    with _receiver() as (url, inbox):
        asked = {"url": url, "events": ["batch.completed"]}
        answer = exam.target.ask("POST", _PATH, asked)
        match answer.status:
            case HTTPStatus.OK | HTTPStatus.CREATED:
                return _sent(exam, answer.body, inbox)
            case HTTPStatus.BAD_REQUEST:
                return _signed_here(exam)
    raise NotChecked(
        f"POST {_PATH} answers {answer.status}: there is no way to name an address for messages."
    )


def _sent(exam: Exam, webhook: dict[str, Any], inbox: "queue.Queue[Message]") -> str:
    try:
        batch = exam.create(exam.upload(good_lines(exam.model, 1)))
        exam.follow(batch)
        found = ""
        while found != batch.id:  # batches that other traps made end as well
            try:
                message = inbox.get(timeout=_PATIENCE)
            except queue.Empty:
                came = f"none for {batch.id}"
                raise Fault(f"a message within {_PATIENCE:.0f} s", came) from None
            found = _unwrap(exam, message, webhook["secret"])
    finally:
        exam.target.ask("DELETE", f"{_PATH}/{webhook['id']}")
    return "a message that was sent here is accepted"


def _signed_here(exam: Exam) -> str:
    wanted, secret, now = exam.good.end.id, new_secret(), datetime.now(UTC)
    job_id = decode(JOB_PREFIX, wanted)
    if job_id is None:
        raise NotChecked(f"POST {_PATH} answers 400, and the server's ids are not ours.")
    event = Event(1, "batch.completed", {"job_id": str(job_id)}, now)
    body = body_of(event)
    found = _unwrap(exam, (body, headers_of(event, body, [secret], now)), secret)
    expect(found == wanted, f"an event of {wanted}", found)
    return "a message signed here is accepted (the server may not send to this host)"


def _unwrap(exam: Exam, message: Message, secret: str) -> str:
    """The id of the batch that a message tells of; the client raises where it is not signed."""
    body, headers = message
    event = exam.client.webhooks.unwrap(body, headers, secret=secret)
    expect(event.type == "batch.completed", "the type 'batch.completed'", event.type)
    return str(getattr(event.data, "id", None))


@contextmanager
def _receiver() -> "Iterator[tuple[str, queue.Queue[Message]]]":
    """The address of a server on this host, and what is sent to it."""
    inbox: queue.Queue[Message] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
            inbox.put((body, dict(self.headers.items())))

        def log_message(self, *_: object) -> None:
            """Nothing: the table is for the findings."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(_POLL_SECONDS,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", inbox
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
