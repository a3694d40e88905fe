"""Cells that a spreadsheet must not take for a formula."""

import re

_STARTS = ("=", "+", "-", "@", "\t", "\r")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def neutral(value: object) -> str:
    """A value as a CSV cell: text that could start a formula gets an apostrophe before it.

    Numbers stay as they are, also those with a sign that came as text; None is an empty cell.
    """
    if value is None:
        return ""
    text = str(value)
    if text.startswith(_STARTS) and not _NUMBER.fullmatch(text):
        return f"'{text}"
    return text
