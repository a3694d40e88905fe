"""A multipart upload read as it arrives: its few fields are kept, its file only passes through.

The file may come before ``purpose``, as a careless client sends it, but not before its expiry,
which is stored with its first bytes.
"""

from collections.abc import Iterator
from typing import IO

from werkzeug.sansio.multipart import Data, Field, File

from runner.domain.errors import InvalidRequest
from runner.services.files import INPUT_PURPOSE, Upload, check_expiry_seconds
from web.multipart import open_multipart, read_events

_FIELD_BYTES = 1024
_PURPOSE, _ANCHOR, _SECONDS = "purpose", "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = (_PURPOSE, _ANCHOR, _SECONDS)


class UploadForm:
    """The form of one upload: ``begin``, read the file to its end, then ``finish``.

    ``extra`` names fields beyond those of the contract; ``fields`` holds all that were read so far.
    """

    def __init__(self, stream: IO[bytes], boundary: str, extra: tuple[str, ...] = ()) -> None:
        self._events = read_events(stream, boundary)
        self._known = (*_FIELDS, *extra)
        self.fields: dict[str, str] = {}

    def begin(self) -> Upload:
        """Read up to the file's first byte and check what came before it."""
        filename = self._read_fields()
        if filename is None:
            raise _missing("file")
        self._check_purpose()
        return Upload(filename, self._pieces(), self._expiry_seconds())

    def finish(self) -> None:
        """Read what follows the file; only now is it known that nothing is missing."""
        known = dict(self.fields)
        if self._read_fields() is not None:
            raise InvalidRequest("An upload has one file.", code="invalid_multipart", param="file")
        if any(self.fields.get(name) != known.get(name) for name in (_ANCHOR, _SECONDS)):
            raise InvalidRequest("expires_after must come before the file.", param="expires_after")
        if _PURPOSE not in self.fields:
            raise _missing(_PURPOSE)
        self._check_purpose()

    def _read_fields(self) -> str | None:
        """Keep fields until a file begins, whose name is returned, or until the form ends."""
        for event in self._events:
            match event:
                case File(name="file"):
                    return event.filename
                case Field() if event.name in self._known:
                    self.fields[event.name] = self._read_text(event.name)
                case Field(name="file"):
                    raise InvalidRequest("file must be sent with a filename.", param="file")
                case Field() | File():
                    raise _unknown(event.name)
        return None

    def _read_text(self, name: str) -> str:
        text = bytearray()
        for piece in self._pieces():
            text += piece
            if len(text) > _FIELD_BYTES:
                raise InvalidRequest(f"{name} is too long.", param=name)
        return text.decode(errors="replace")

    def _pieces(self) -> Iterator[bytes]:
        """The bytes of the part that has just begun."""
        for event in self._events:
            assert isinstance(event, Data)
            yield event.data
            if not event.more_data:
                return

    def _check_purpose(self) -> None:
        purpose = self.fields.get(_PURPOSE, INPUT_PURPOSE)
        if purpose != INPUT_PURPOSE:
            raise InvalidRequest(
                f"purpose must be {INPUT_PURPOSE!r}.", code="invalid_value", param=_PURPOSE
            )

    def _expiry_seconds(self) -> int | None:
        anchor, seconds = self.fields.get(_ANCHOR), self.fields.get(_SECONDS)
        if anchor is None and seconds is None:
            return None
        if anchor is None or seconds is None:
            raise _missing(_ANCHOR if anchor is None else _SECONDS)
        if anchor != "created_at":
            raise InvalidRequest(
                f"{_ANCHOR} must be 'created_at'.", code="invalid_value", param=_ANCHOR
            )
        if not (seconds.isascii() and seconds.isdigit()):
            raise InvalidRequest(
                f"{_SECONDS} must be an integer.", code="invalid_type", param=_SECONDS
            )
        check_expiry_seconds(int(seconds), _SECONDS)
        return int(seconds)


def open_form(max_bytes: int, extra: tuple[str, ...] = ()) -> UploadForm:
    """The form of an upload that the present request carries.

    Raises:
        InvalidRequest: the request carries no form.
        TooLarge: it announces a file of more than ``max_bytes``.
    """
    return UploadForm(*open_multipart(max_bytes, "file"), extra)


def _unknown(name: str | None) -> InvalidRequest:
    if name is None:
        return InvalidRequest("A part of the form has no name.", code="invalid_multipart")
    shown = name[:100]
    return InvalidRequest(f"Unknown parameter: {shown}.", code="unknown_parameter", param=shown)


def _missing(name: str) -> InvalidRequest:
    return InvalidRequest(f"{name} is required.", code="missing_required_parameter", param=name)
