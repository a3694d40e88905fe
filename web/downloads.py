"""Sending bytes that may be many: as an attachment, in pieces, in parts where they are final."""

from collections.abc import Iterable, Iterator
from urllib.parse import quote

from flask import Response, request
from werkzeug.datastructures import ContentRange
from werkzeug.exceptions import RequestedRangeNotSatisfiable
from werkzeug.http import dump_options_header

from runner.domain.ids import FILE_PREFIX, encode
from runner.services import contents
from runner.services.files import FileRecord
from web.request_scope import current_runtime

_PIECE_BYTES = 64 * 1024


def send_file(file: FileRecord) -> Response:
    """The content of a file, or the range of it that is asked for. It never changes."""
    etag = encode(FILE_PREFIX, file.id)
    span = _wanted_range(file.bytes, etag)
    start, stop = span or (0, file.bytes)
    pieces = contents.open_content(current_runtime().sessions, file, start, stop)
    response = send_pieces(pieces, file.filename, "application/octet-stream")
    response.content_length = stop - start
    response.headers["Accept-Ranges"] = "bytes"
    response.set_etag(etag)
    if span is not None:
        response.status_code = 206
        response.content_range = ContentRange("bytes", start, stop, file.bytes)
    return response


def send_pieces(pieces: Iterable[bytes], filename: str, mimetype: str) -> Response:
    """Pieces of an unknown total length, sent as they come."""
    response = Response(_gather(pieces), mimetype=mimetype)
    response.headers["Content-Disposition"] = _attachment(filename)
    return response


def _attachment(filename: str) -> str:
    """The header that has a browser save the content, never show it; headers are ASCII."""
    plain = filename.encode("ascii", "replace").decode().replace("?", "_")
    names = {"filename": plain}
    if plain != filename:
        names["filename*"] = "UTF-8''" + quote(filename, safe="")
    return dump_options_header("attachment", names)


def _wanted_range(length: int, etag: str) -> tuple[int, int] | None:
    """Where one range begins and ends; None for the whole, which also answers several ranges."""
    asked = request.range
    if asked is None or asked.units != "bytes" or len(asked.ranges) != 1:
        return None
    condition = request.if_range
    if condition is not None and "If-Range" in request.headers and condition.etag != etag:
        return None
    first, end = asked.ranges[0]
    start = max(0, length + first) if first < 0 else first
    stop = length if end is None else min(end, length)
    if start >= stop:
        raise RequestedRangeNotSatisfiable(length, "bytes")
    return start, stop


def _gather(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join short pieces: each that is sent costs a system call."""
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _PIECE_BYTES:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
