"""Which JSON we take from outside: what every reader of it will understand in the same way."""

import re
from typing import Any

import msgspec

MAX_DEPTH = 64  # levels of objects and lists
_INT64 = range(-(2**63), 2**63)
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_HALF_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ABOUT_ESCAPES = re.compile("truncated|surrogate|escape", re.IGNORECASE)
_OUT_OF_RANGE = (
    "holds a number out of range: numbers are finite, integers have at most 64 bits; "
    "write others as strings"
)
_HALF_A_PAIR = "holds one half of a surrogate pair (\\ud800 to \\udfff); write the whole character"
_TOO_DEEP = f"is nested deeper than {MAX_DEPTH} levels"

_decoder = msgspec.json.Decoder()


class UnsoundJson(Exception):
    """What is wrong, as the rest of a sentence whose subject the reader knows."""


def read_json(data: bytes) -> Any:  # noqa: ANN401
    """Decode all of a value, every string, number and level of it.

    Raises:
        UnsoundJson: it is not JSON in UTF-8, too deep, or holds a number that others would bend.
    """
    try:
        if not data.isascii():
            data.decode()
        value = _decoder.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnsoundJson(_why_unreadable(data, error)) from None
    _check_values(value)
    return value


def _check_values(value: Any) -> None:  # noqa: ANN401
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        below: list[Any] = []
        for item in level:
            kind = type(item)
            if kind is dict:
                below += item.values()
            elif kind is list:
                below += item
            elif kind is int and item not in _INT64:
                raise UnsoundJson(_OUT_OF_RANGE)
        if not below:
            return
        level = below
    raise UnsoundJson(_TOO_DEEP)


def _why_unreadable(data: bytes, error: Exception) -> str:
    if data.startswith(_UTF16_MARKS) or b"\0" in data[:4]:
        return "is not UTF-8 but looks like UTF-16; save the file as UTF-8"
    if isinstance(error, UnicodeDecodeError):
        return f"is not UTF-8 at byte {error.start}"
    if isinstance(error, RecursionError):
        return _TOO_DEEP
    if "out of range" in str(error):
        return _OUT_OF_RANGE
    if _HALF_ESCAPE.search(data) and _ABOUT_ESCAPES.search(str(error)):
        return _HALF_A_PAIR
    return f"is not one JSON object: {str(error)[:200].rstrip('.')}"
