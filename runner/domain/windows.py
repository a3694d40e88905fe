"""Completion windows: within which time of its start a job is to end."""

import re
from datetime import timedelta

from runner.domain.errors import InvalidRequest

DEFAULT_WINDOW = "24h"
WINDOW_PATTERN = r"^[1-9][0-9]{0,2}[hd]$"
_SHORTEST, _LONGEST = timedelta(hours=1), timedelta(days=7)


def parse_window(text: str) -> timedelta:
    """The length of a window such as ``1h``, ``24h`` or ``7d``.

    Raises:
        InvalidRequest: it is none, or it is not between an hour and seven days.
    """
    if re.fullmatch(WINDOW_PATTERN, text, re.ASCII):
        number = int(text[:-1])
        length = timedelta(hours=number) if text[-1] == "h" else timedelta(days=number)
        if _SHORTEST <= length <= _LONGEST:
            return length
    raise InvalidRequest(
        "completion_window must be from 1h to 7d: hours such as 24h, or days such as 3d.",
        param="completion_window",
    )
