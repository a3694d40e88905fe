"""Multipart bodies read as they arrive: events of a form, and a form that is one part of bytes."""

from collections.abc import Iterator
from typing import IO

from flask import request
from werkzeug.sansio.multipart import Data, Epilogue, Event, Field, File, MultipartDecoder, NeedData

from runner.domain.errors import InvalidRequest, TooLarge
from web.request_scope import current_runtime

_READ_BYTES = 256 * 1024
_BUFFER_BYTES = 1024**2  # what the decoder may hold: a part's headers, or one read of its data
_LOOK_BYTES = 64 * 1024**2  # between looks at the room that is left
_MAX_PARTS = 16
_FORM_BYTES = 2 * 1024**2  # more than a form weighs beside its file, plus one chunk of the file


def open_multipart(max_bytes: int, param: str) -> tuple[IO[bytes], str]:
    """The body and boundary of a request that is a form with at most so many bytes in ``param``.

    Raises:
        InvalidRequest: it is no such form.
        TooLarge: it announces more.
        StorageFull: there is no room for what it announces.
    """
    boundary = request.mimetype_params.get("boundary")
    if request.mimetype != "multipart/form-data" or not boundary:
        raise InvalidRequest(
            "An upload is a multipart/form-data body.", code="invalid_multipart", param=param
        )
    if (request.content_length or 0) > max_bytes + _FORM_BYTES:
        raise TooLarge(
            f"The {param} is larger than {max_bytes:,} bytes; split it.",
            code=f"{'part' if param == 'data' else param}_too_large",
            param=param,
        )
    current_runtime().require_room(request.content_length or 0)
    request.max_content_length = max_bytes + _FORM_BYTES
    return request.stream, boundary


def read_events(stream: IO[bytes], boundary: str) -> Iterator[Event]:
    """The events of a form up to its end; more is read only when nothing is left to give."""
    taken = 0
    decoder = MultipartDecoder(boundary.encode(), _BUFFER_BYTES, max_parts=_MAX_PARTS)
    while True:
        try:
            event = decoder.next_event()
        except ValueError as error:
            raise InvalidRequest(
                "The form is malformed or ends too early.", code="invalid_multipart"
            ) from error
        if isinstance(event, NeedData):
            if taken >= _LOOK_BYTES:  # others fill the disk at the same time
                current_runtime().require_room(0)
                taken = 0
            taken += _READ_BYTES
            decoder.receive_data(stream.read(_READ_BYTES) or None)
        elif isinstance(event, Epilogue):
            return
        else:
            yield event


def read_only_part(stream: IO[bytes], boundary: str, name: str) -> Iterator[bytes]:
    """The bytes of a form that has one file and nothing else."""
    found = False
    for event in read_events(stream, boundary):
        match event:
            case Data():
                yield event.data
            case File() if event.name == name and not found:
                found = True
            case Field() if event.name == name:
                raise InvalidRequest(f"{name} must be sent with a filename.", param=name)
            case Field() | File():
                raise InvalidRequest(
                    f"The form has one file, {name}.", code="invalid_multipart", param=name
                )
    if not found:
        raise InvalidRequest(f"{name} is required.", code="missing_required_parameter", param=name)
