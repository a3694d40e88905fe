"""Completion windows: within which time of its start a job is to end."""

import re
from datetime import timedelta

from runner.domain.errors import InvalidRequest

DEFAULT_WINDOW = "24h"
WINDOW_PATTERN = r"^[1-9][0-9]{0,2}[smhd]$"
_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_SHORTEST, _LONGEST = timedelta(seconds=10), timedelta(days=7)


def parse_window(text: str) -> timedelta:
    """The length of a window such as ``30m``, ``24h`` or ``7d``.

    Raises:
        InvalidRequest: it is none, or it is not between ten seconds and seven days.
    """
    if re.fullmatch(WINDOW_PATTERN, text, re.ASCII):
        length = int(text[:-1]) * _UNITS[text[-1]]
        if _SHORTEST <= length <= _LONGEST:
            return length
    raise InvalidRequest(
        "completion_window must be from 10s to 7d: a number and s, m, h or d, such as 30m or 24h.",
        param="completion_window",
    )
