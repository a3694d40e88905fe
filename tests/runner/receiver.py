"""A server that takes webhooks: it keeps what came, and answers what it is told to."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

_PATIENCE = 90.0


@dataclass(frozen=True)
class Received:
    headers: dict[str, str]
    body: bytes


class Receiver:
    """Answers with the statuses in turn, and with the last of them from then on."""

    def __init__(self, server: ThreadingHTTPServer) -> None:
        self.statuses = [200]
        self.received: list[Received] = []
        self.answer_headers: dict[str, str] = {}
        self.answer_bytes = b"ok"
        self.host = "127.0.0.1"
        self.url = f"http://{self.host}:{server.server_port}/hooks"

    def next_status(self) -> int:
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of this host, for whose answers a stalling machine may wait."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(headers, body))
            self.send_response(receiver.next_status())
            for name, value in receiver.answer_headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(receiver.answer_bytes)))
            self.end_headers()
            try:
                self.wfile.write(receiver.answer_bytes)
            except ConnectionError:
                return  # whoever asked has read enough

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(server)
    thread = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
    )
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("runner.outbound._SECONDS", _PATIENCE)
            patch.setattr("runner.outbound._WHOLE_SECONDS", _PATIENCE)
            yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
