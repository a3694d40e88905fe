"""One line of an input file: the only parser, for check at ingest and for use in the worker.

Lines are bytes, split on ``\\n`` only. Envelope and body are decoded by msgspec both times, so
what was checked is what runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from runner.domain.defaults import NO_DEFAULTS, Defaults
from runner.domain.outlines import Asked, Outline, outline
from runner.domain.sound_json import UnsoundJson, read_json

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_CUSTOM_ID = 512  # characters
_BOM = b"\xef\xbb\xbf"


class Line(msgspec.Struct):
    """The envelope of a line; ``body`` stays raw until the endpoint's own type reads it."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: msgspec.Raw


class _Named(msgspec.Struct):
    """All that is wanted of a line that cannot run; the rest of it is skipped unread."""

    custom_id: str


class BodyHead(Asked, kw_only=True):
    """What ingest must know of a body: who answers, the text that may be shared, and its size."""

    model: str
    stream: bool | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """A line that passed: its custom id, its model, its own part of the prompt as written, how
    large it is, and its body with the defaults under it."""

    custom_id: str
    model: str
    prompt: bytes
    outline: Outline
    body: msgspec.Raw


class LineError(Exception):
    """One fault of one line, in the words of the wire contract.

    ``custom_id`` is the line's own, None where it could not be read or is itself at fault.
    """

    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.custom_id: str | None = None


@dataclass(frozen=True, slots=True)
class RawLine:
    """Where a line lies in its file. ``number`` counts from 1 and includes blank lines."""

    number: int
    offset: int
    data: bytes


_line_decoder = msgspec.json.Decoder(Line)
_body_decoder = msgspec.json.Decoder(BodyHead)
_named_decoder = msgspec.json.Decoder(_Named)


def split_lines(pieces: Iterable[bytes], max_line_bytes: int) -> Iterator[RawLine]:
    """Cut a stream of pieces into its non-blank lines, without ever holding the whole file.

    A leading byte order mark and a trailing carriage return are not part of a line. Of a line
    longer than ``max_line_bytes`` a part may be left out, but it still comes out longer than that.
    """
    most = max_line_bytes + len(_BOM) + len(b"\r") + 1  # still too long once trimmed
    number, start, skipped = 0, 0, 0
    rest = b""
    for piece in pieces:
        *whole, rest_of_piece = piece.split(b"\n")
        for part in whole:
            number += 1
            data = rest + part
            yield from _non_blank(number, start, data, max_line_bytes)
            start += len(data) + skipped + 1
            rest, skipped = b"", 0
        rest += rest_of_piece
        if len(rest) > most:  # keep only what proves the fault
            skipped += len(rest) - most
            rest = rest[:most]
    if rest:
        yield from _non_blank(number + 1, start, rest, max_line_bytes)


def _non_blank(number: int, offset: int, data: bytes, max_line_bytes: int) -> Iterator[RawLine]:
    if offset == 0 and data.startswith(_BOM):
        data = data[len(_BOM) :]
        offset = len(_BOM)
    if data.endswith(b"\r"):
        data = data[:-1]
    if len(data) > max_line_bytes or data.strip():  # what was left out may not be blank
        yield RawLine(number, offset, data)


def parse_line(
    data: bytes, endpoint: str, max_line_bytes: int, defaults: Defaults = NO_DEFAULTS
) -> ParsedLine:
    """Check one line against its job's endpoint, with the job's defaults under its body.

    Raises:
        LineError: the first fault found, with code, sentence and param.
    """
    if len(data) > max_line_bytes:  # and cut off, so its custom id is not looked for
        raise LineError("line_too_long", f"The line has more than {max_line_bytes:,} bytes.")
    try:
        return _sound_line(data, endpoint, defaults)
    except LineError as error:
        error.custom_id = _custom_id_of(data)
        raise


def _sound_line(data: bytes, endpoint: str, defaults: Defaults) -> ParsedLine:
    fields = _read_fields(data)
    try:
        line = _line_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise _envelope_fault(fields, error) from None
    _check_custom_id(line.custom_id)
    if line.url != endpoint:
        code = "url_mismatch" if line.url in ENDPOINTS else "invalid_url"
        raise LineError(
            code, f"url is {line.url[:100]!r}, but the batch was made for {endpoint!r}.", "url"
        )
    body = defaults.under(line.body)
    head = _body_head(body)
    if head.stream:
        raise LineError(
            "streaming_unsupported", "A batch cannot stream; remove body.stream.", "body.stream"
        )
    prompt = _own_prompt(head, defaults)
    size = outline(endpoint, prompt, defaults.shared_bytes, head)
    return ParsedLine(line.custom_id, head.model, prompt, size, body)


def url_of(data: bytes) -> str | None:
    """The endpoint that a line is for, if it can be read and names one of ours."""
    try:
        url = msgspec.json.decode(data, type=dict[str, Any]).get("url")
    except (msgspec.DecodeError, RecursionError):
        return None
    return url if isinstance(url, str) and url in ENDPOINTS else None


def _custom_id_of(data: bytes) -> str | None:
    """The custom id of a line that is refused, where it has one that could be accepted."""
    try:
        custom_id = _named_decoder.decode(data).custom_id
        _check_custom_id(custom_id)
    except (msgspec.DecodeError, RecursionError, LineError):
        return None
    return custom_id


def _own_prompt(head: BodyHead, defaults: Defaults) -> bytes:
    """The prompt as written, by whatever field its endpoint has for it."""
    chat = bytes(head.messages)[defaults.shared_bytes :]
    return chat or bytes(head.prompt) or bytes(head.instructions) + bytes(head.input)


def _read_fields(data: bytes) -> dict[str, Any]:
    """Decode all of a line once: what stays raw later has been looked into here."""
    try:
        value = read_json(data)
    except UnsoundJson as error:
        raise LineError("invalid_json_line", f"The line {error}.") from None
    if not isinstance(value, dict):
        raise LineError("invalid_json_line", "The line is JSON, but not an object.")
    return value


def _check_custom_id(custom_id: str) -> None:
    if not custom_id or len(custom_id) > MAX_CUSTOM_ID or not custom_id.isprintable():
        raise LineError(
            "invalid_request",
            f"custom_id must have 1 to {MAX_CUSTOM_ID} printable characters.",
            "custom_id",
        )


def _body_head(body: msgspec.Raw) -> BodyHead:
    try:
        return _body_decoder.decode(body)
    except msgspec.DecodeError as error:
        raise _body_fault(msgspec.json.decode(body), error) from None


def _envelope_fault(fields: dict[str, Any], error: Exception) -> LineError:
    """Say precisely what is wrong with an envelope whose JSON is sound."""
    for name in ("custom_id", "method", "url", "body"):
        if name not in fields:
            return LineError("missing_required_parameter", f"The line has no {name}.", name)
    for name in ("custom_id", "url"):
        if not isinstance(fields[name], str):
            return LineError("invalid_type", f"{name} must be a string.", name)
    if fields["method"] != "POST":
        return LineError("invalid_request", 'method must be "POST".', "method")
    return LineError("invalid_json_line", f"The line cannot be read: {error}.")


def _body_fault(fields: Any, error: Exception) -> LineError:  # noqa: ANN401
    if not isinstance(fields, dict):
        return LineError("invalid_type", "body must be a JSON object.", "body")
    if "model" not in fields:
        return LineError("missing_required_parameter", "The body names no model.", "body.model")
    if not isinstance(fields["model"], str):
        return LineError("invalid_type", "model must be a string.", "body.model")
    if not isinstance(fields.get("stream"), bool | None):
        return LineError("invalid_type", "stream must be true or false.", "body.stream")
    return LineError("invalid_json_line", f"The body cannot be read: {error}.", "body")
