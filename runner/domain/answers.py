"""How one line of an output or error file is written.

JSON may hold three characters as they are at which Python's ``str.splitlines`` ends a line, and
clients read files with it. So they are written as escapes, which say the same to every reader.
"""

import msgspec

_SEPARATORS = (
    ("\u2028".encode(), rb"\u2028"),
    ("\u2029".encode(), rb"\u2029"),
    ("\x85".encode(), rb"\u0085"),
)
UNFINISHED_MESSAGES = {
    "batch_cancelled": "This line was not run before the batch was cancelled.",
    "batch_expired": "This line was not run before the batch expired.",
}


def success_line(item_id: str, custom_id: str, body: bytes) -> bytes:
    """The output line of a 2xx answer; ``body`` is its JSON."""
    return (
        b'{"id":"%b","custom_id":%b,"response":{"status_code":200,"request_id":"%b","body":%b},'
        b'"error":null}\n'
    ) % (_ascii(item_id), _json(custom_id), _ascii(item_id), unbroken(body))


def refusal_line(
    item_id: str, custom_id: str | None, status: int, error: dict[str, str | None]
) -> bytes:
    """The error line of an answer with an HTTP status; ``error`` as in the wire's envelope."""
    return (
        b'{"id":"%b","custom_id":%b,"response":{"status_code":%d,"request_id":"%b",'
        b'"body":{"error":%b}},"error":null}\n'
    ) % (_ascii(item_id), _json(custom_id), status, _ascii(item_id), _json(error))


def unfinished_line(item_id: str, custom_id: str, code: str) -> bytes:
    """The error line of an item that a cancelled or expired job never ran."""
    return b'{"id":"%b","custom_id":%b,"response":null,"error":{"code":"%b","message":"%b"}}\n' % (
        _ascii(item_id),
        _json(custom_id),
        _ascii(code),
        _ascii(UNFINISHED_MESSAGES[code]),
    )


def error_body(status: int, message: str, code: str, param: str | None) -> dict[str, str | None]:
    """The ``error`` object of the wire contract for a status."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"message": message, "type": kind, "param": param, "code": code}


def _ascii(text: str) -> bytes:
    return text.encode("ascii")


def _json(value: object) -> bytes:
    return unbroken(msgspec.json.encode(value))


def unbroken(written: bytes) -> bytes:
    """JSON without what some readers take for the end of a line; no other character has it."""
    for raw, escape in _SEPARATORS:
        written = written.replace(raw, escape)
    return written
