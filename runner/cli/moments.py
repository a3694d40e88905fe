"""Options that say when: a moment, and hours of the day."""

from datetime import UTC, datetime
from typing import Annotated

import typer

_FORMATS = ["%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M:%S"]

StartAfter = Annotated[
    datetime | None,
    typer.Option(formats=_FORMATS, help="No line runs before; UTC unless an offset is given."),
]
RunHoursText = Annotated[
    str | None,
    typer.Option(help="Lines start within these hours only: 22:00-06:00 Europe/Berlin."),
]


def as_moment(given: datetime | None) -> datetime | None:
    """A moment from the command line; without an offset it is UTC."""
    if given is None or given.tzinfo is not None:
        return given
    return given.replace(tzinfo=UTC)
