"""The hours of the day in which a job may run, by the wall clock of a time zone.

The wall clock alone decides: where it jumps, hours that do not exist that day are left out, and
hours that come twice are open twice.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from runner.domain.errors import InvalidRequest

_PATTERN = re.compile(
    r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)(?: ([A-Za-z0-9_+/-]{1,64}))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class RunHours:
    """From ``start`` to ``end`` each day, through midnight when ``end`` is the earlier."""

    start: time
    end: time
    zone: ZoneInfo

    def __str__(self) -> str:
        return f"{self.start:%H:%M}-{self.end:%H:%M} {self.zone.key}"

    def is_open(self, moment: datetime) -> bool:
        """Whether a moment lies within the hours."""
        clock = moment.astimezone(self.zone).time()
        if self.start < self.end:
            return self.start <= clock < self.end
        return clock >= self.start or clock < self.end

    def opens_at(self, moment: datetime) -> datetime:
        """The first open moment from ``moment`` on, in UTC."""
        if self.is_open(moment):
            return moment
        # A day on which the clock jumps over all of the hours has none of them.
        today = moment.astimezone(self.zone).date()
        days = (today + timedelta(days=number) for number in range(-1, 4))
        found = [at for day in days for at in self._openings(day) if at > moment]
        return min(at for at in found if self.is_open(at))

    def _openings(self, day: date) -> Iterator[datetime]:
        """Moments at which the hours may open on a local day: their start, and a jump."""
        start = datetime.combine(day, self.start, self.zone)
        yield start.astimezone(UTC)
        yield start.replace(fold=1).astimezone(UTC)
        midnight = datetime.combine(day, time(), self.zone)
        low, high = midnight.astimezone(UTC), (midnight + timedelta(days=1)).astimezone(UTC)
        if self._offset(low) != self._offset(high):
            yield self._jump(low, high)

    def _jump(self, low: datetime, high: datetime) -> datetime:
        """The minute in which the zone's offset changes."""
        before = self._offset(low)
        while high - low > timedelta(minutes=1):
            middle = low + timedelta(minutes=(high - low) // timedelta(minutes=2))
            if self._offset(middle) == before:
                low = middle
            else:
                high = middle
        return high

    def _offset(self, moment: datetime) -> timedelta | None:
        return moment.astimezone(self.zone).utcoffset()


@lru_cache(maxsize=256)
def parse_run_hours(text: str) -> RunHours:
    """Hours as ``22:00-06:00 Europe/Berlin``; without a zone they are UTC.

    Raises:
        InvalidRequest: they are written otherwise, are empty, or name no zone.
    """
    match = _PATTERN.fullmatch(text)
    if match is None:
        raise _refusal("run_hours are written as 22:00-06:00 Europe/Berlin; without a zone: UTC.")
    start = time(int(match[1]), int(match[2]))
    end = time(int(match[3]), int(match[4]))
    if start == end:
        raise _refusal("run_hours that begin as they end are none; leave them out for all day.")
    return RunHours(start, end, _zone(match[5] or "UTC"))


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # OSError: the name of a folder
        raise _refusal(
            f"There is no time zone {name!r}; they are named like Europe/Berlin."
        ) from None


def _refusal(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="run_hours")
