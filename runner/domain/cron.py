"""Cron expressions in a time zone: which moments they name, also where clocks are turned.

Matching is cronsim's, as Debian's cron has it; the two rules for turned clocks are ours, for
cronsim's own differ by how a field is spelt. If the hours are named (``30 2 * * *``), each time on
the clock counts once: a doubled one the first time it comes, one that is left out at the first
minute after the gap. If every hour or every so many are meant (the hour begins with ``*``), each
real hour counts: a doubled one twice, one that is left out not at all.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from runner.domain.errors import InvalidRequest

LONGEST_CRON = 100
_FIELDS = 5
_MINUTE = timedelta(minutes=1)
_LONGEST_FOLD = timedelta(hours=3)  # clocks are never set back by more
_SINCE = datetime(2026, 1, 1)  # noqa: DTZ001 - on the clock of whichever zone
_WINDOWS = tuple(timedelta(days=days) for days in (1 / 24, 1, 31, 366, 3660))


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields and an IANA zone; made by ``parse_cron``, which checks both."""

    text: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> Iterator[datetime]:
        """The moments that it names later than ``moment``, in order, in UTC."""
        while True:
            found = self._next(moment)
            if found is None:
                return
            yield found
            moment = found

    def between(self, start: datetime, end: datetime, limit: int) -> list[datetime]:
        """The last ``limit`` moments from ``start`` to ``end``, both included."""
        found: deque[datetime] = deque(maxlen=limit)
        for window in _WINDOWS:  # a minute's schedule over years must not be gone through
            begin = max(start, end - window) - timedelta(microseconds=1)
            found.clear()
            for moment in self.after(begin):
                if moment > end:
                    break
                found.append(moment)
            if len(found) == limit or begin < start:
                break
        return list(found)

    @property
    def words(self) -> str:
        """What it says, such as ``At 02:30 every day``."""
        return str(CronSim(self.text, _SINCE).explain())

    def _next(self, moment: datetime) -> datetime | None:
        """The first moment after another.

        Times on the clock come in order, and so do the first moments at which they are shown; only
        the second moment of a doubled time may come after the first of a later time.
        """
        best: datetime | None = None
        for shown in self._shown(self._clock_before(moment)):
            moments = self._moments(shown)
            if best is not None and moments and moments[0] >= best:
                break
            for found in moments:
                if found > moment and (best is None or found < best):
                    best = found
        return best

    def _clock_before(self, moment: datetime) -> datetime:
        """A time on the clock before which nothing is shown again after ``moment``."""
        around = (moment - _LONGEST_FOLD, moment, moment + _LONGEST_FOLD)
        before, now, later = (at.astimezone(self.zone) for at in around)
        back = timedelta(seconds=1) if before.utcoffset() == later.utcoffset() else _LONGEST_FOLD
        return now.replace(tzinfo=None) - back

    def _shown(self, since: datetime) -> Iterator[datetime]:
        """The times on the clock that the fields name; for fifty years none means none."""
        try:
            yield from CronSim(self.text, since)
        except OverflowError:  # the end of the calendar
            return

    def _moments(self, shown: datetime) -> list[datetime]:
        """The moments that count of those at which the clock shows a time."""
        every_hour = self.text.split()[1].startswith("*")
        if _is_shown(shown, self.zone):
            folds = (0, 1) if every_hour else (0,)
            at = [shown.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in folds]
            return sorted(set(at))
        if every_hour:
            return []
        while not _is_shown(shown, self.zone):
            shown += _MINUTE
        return [shown.replace(tzinfo=self.zone).astimezone(UTC)]


def parse_cron(text: str, zone: str) -> Cron:
    """Read an expression and the name of a zone.

    Raises:
        InvalidRequest: either cannot be read, or no moment ever comes.
    """
    cron = Cron(_checked(text), _zone(zone))
    if next(cron.after(_SINCE.replace(tzinfo=UTC)), None) is None:
        raise InvalidRequest(f"cron: {text!r} names a day that never comes.", param="cron")
    return cron


def _checked(text: str) -> str:
    fields = text.split()
    if len(text) > LONGEST_CRON or len(fields) != _FIELDS:
        raise InvalidRequest(
            "cron has five fields: minute, hour, day of month, month, day of week, "
            "such as '30 2 * * *'.",
            param="cron",
        )
    try:
        CronSim(text, _SINCE)
    except CronSimError as error:
        raise InvalidRequest(f"cron: {error} in {text!r}.", param="cron") from None
    return " ".join(fields)


def _zone(name: str) -> ZoneInfo:
    # Asked for by name alone, ZoneInfo would look into whatever path the name gives.
    if name not in available_timezones():
        raise InvalidRequest(
            f"There is no time zone {name[:100]!r}; zones are named as in 'Europe/Berlin' or "
            "'UTC'.",
            param="zone",
        )
    return ZoneInfo(name)


def _is_shown(time: datetime, zone: ZoneInfo) -> bool:
    """Whether the clock of a zone ever shows a time: where it is set forward some are left out."""
    return time.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) == time
