"""Charts of days as plain rectangles, drawn by the server: they need no script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

TONES = 6  # the look knows so many; what comes after the largest shares the last
MOST_DAYS = 92

Teller = Callable[[int], str]
"""Writes a value for people."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One rectangle, in days across and in the chart's own units up; ``tone`` is its colour."""

    x: float
    y: float
    width: float
    height: float
    tone: int
    title: str


@dataclass(frozen=True, slots=True)
class Series:
    """What one colour stands for: its name, its values by day, and their sum."""

    name: str
    values: dict[date, int]

    @property
    def total(self) -> int:
        """Over all days."""
        return sum(self.values.values())


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of ``days`` columns, one unit high; ``top`` is the value that reaches its top."""

    days: tuple[date, ...]
    series: tuple[Series, ...]
    bars: tuple[Bar, ...]
    top: int


def days_between(first: date, last: date) -> tuple[date, ...]:
    """All days, both ends included, the latest ``MOST_DAYS`` of them."""
    count = min((last - first).days + 1, MOST_DAYS)
    return tuple(last - timedelta(days=count - 1 - n) for n in range(max(0, count)))


def biggest(series: Sequence[Series], rest: str = "others") -> tuple[Series, ...]:
    """The series of the largest sums, each with a colour of its own, and the rest as one."""
    ordered = sorted(series, key=lambda one: (-one.total, one.name))
    if len(ordered) <= TONES:
        return tuple(ordered)
    others: dict[date, int] = {}
    for one in ordered[TONES - 1 :]:
        for day, value in one.values.items():
            others[day] = others.get(day, 0) + value
    return (*ordered[: TONES - 1], Series(rest, others))


def stacked(days: tuple[date, ...], series: tuple[Series, ...], told: Teller) -> Chart:
    """Series on top of each other, a column for each day."""
    top = max((sum(one.values.get(day, 0) for one in series) for day in days), default=0)
    bars = []
    for x, day in enumerate(days):
        y = 1.0
        for tone, one in enumerate(series):
            value = one.values.get(day, 0)
            if value:
                height = value / top
                y -= height
                title = f"{day:%d %b}: {one.name} {told(value)}"
                bars.append(Bar(x + 0.12, y, 0.76, height, tone, title))
    return Chart(days, series, tuple(bars), top)


def side_by_side(days: tuple[date, ...], series: tuple[Series, ...], told: Teller) -> Chart:
    """Series beside each other, in the column of each day."""
    top = max((one.values.get(day, 0) for one in series for day in days), default=0)
    width = 0.8 / max(1, len(series))
    bars = []
    for x, day in enumerate(days):
        for tone, one in enumerate(series):
            value = one.values.get(day, 0)
            if value:
                height = value / top
                left = x + 0.1 + tone * width
                title = f"{day:%d %b}: {one.name} {told(value)}"
                bars.append(Bar(left, 1 - height, width * 0.92, height, tone, title))
    return Chart(days, series, tuple(bars), top)
