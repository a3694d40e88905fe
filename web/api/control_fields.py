"""Fields of a job that say when and how soon it runs, as bodies carry them."""

from datetime import UTC, datetime
from typing import Annotated

from pydantic import Field, JsonValue

from runner.domain.errors import InvalidRequest
from runner.services.jobs import MAX_PRIORITY
from web.api.bodies import Whole

_LATEST = 253_402_300_799  # the last second of the year 9999
_RANGE: dict[str, JsonValue] = {"minimum": -MAX_PRIORITY, "maximum": MAX_PRIORITY}
_ABOUT_PRIORITY = "Ours: lines of a higher priority run first."
_ABOUT_START = "Ours: no line runs before; seconds since 1970, at most 30 days ahead."
_ABOUT_HOURS = "Ours: lines start within these hours only, as in 22:00-06:00 Europe/Berlin."

Priority = Annotated[Whole, Field(description=_ABOUT_PRIORITY, json_schema_extra=_RANGE)]
StartAfter = Annotated[
    Whole, Field(description=_ABOUT_START, json_schema_extra={"minimum": 0, "maximum": _LATEST})
]
RunHoursText = Annotated[str, Field(description=_ABOUT_HOURS)]


def read_moment(seconds: int | None, param: str) -> datetime | None:
    """The moment that a number of seconds since 1970 means."""
    if seconds is None:
        return None
    if not 0 <= seconds <= _LATEST:
        raise InvalidRequest(f"{param} is no time: give seconds since 1970.", param=param)
    return datetime.fromtimestamp(seconds, UTC)
