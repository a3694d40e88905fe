"""Hours of the day, by the wall clock of a zone, also where it jumps."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.domain.errors import InvalidRequest
from runner.domain.run_hours import parse_run_hours
from runner.domain.windows import parse_window

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("hours", "moment", "is_open"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-01-10 20:59:59", False),
        ("22:00-06:00 Europe/Berlin", "2026-01-10 21:00", True),
        ("22:00-06:00 Europe/Berlin", "2026-01-11 04:59:59", True),
        ("22:00-06:00 Europe/Berlin", "2026-01-11 05:00", False),
        ("22:00-06:00 Europe/Berlin", "2026-07-10 20:00", True),
        ("09:00-17:00", "2026-07-10 09:00", True),
        ("09:00-17:00", "2026-07-10 17:00", False),
    ],
)
def test_hours_are_open_from_their_start_to_before_their_end(
    hours: str, moment: str, is_open: bool
) -> None:
    assert parse_run_hours(hours).is_open(utc(moment)) is is_open


@pytest.mark.parametrize(
    ("hours", "moment", "opens"),
    [
        ("22:00-06:00 Europe/Berlin", "2026-01-10 12:00", "2026-01-10 21:00"),
        ("22:00-06:00 Europe/Berlin", "2026-01-10 23:00", "2026-01-10 23:00"),
        ("22:00-06:00", "2026-01-10 06:00", "2026-01-10 22:00"),
        # The clock goes from 02:00 to 03:00: what begins at 02:30 begins with the jump.
        ("02:30-05:00 Europe/Berlin", "2026-03-29 00:00", "2026-03-29 01:00"),
        # All of the hours are jumped over: they come a day later.
        ("02:10-02:50 Europe/Berlin", "2026-03-29 00:00", "2026-03-30 00:10"),
        # The clock goes from 03:00 back to 02:00: hours within are open twice.
        ("02:10-02:50 Europe/Berlin", "2026-10-25 00:00", "2026-10-25 00:10"),
        ("02:10-02:50 Europe/Berlin", "2026-10-25 00:50", "2026-10-25 01:10"),
        # Open, closed at 02:30, and the clock goes back into them.
        ("01:00-02:30 Europe/Berlin", "2026-10-25 00:30", "2026-10-25 01:00"),
    ],
)
def test_hours_open_when_the_wall_clock_says_so(hours: str, moment: str, opens: str) -> None:
    assert parse_run_hours(hours).opens_at(utc(moment)) == utc(opens)


@given(
    zone=st.sampled_from(ZONES),
    start=st.integers(0, 95),
    length=st.integers(1, 95),
    minute=st.integers(0, 366 * 24 * 4),
)
def test_the_opening_is_the_first_open_quarter_of_an_hour(
    zone: str, start: int, length: int, minute: int
) -> None:
    clocks = [f"{n // 4:02}:{n % 4 * 15:02}" for n in (start, (start + length) % 96)]
    hours = parse_run_hours(f"{clocks[0]}-{clocks[1]} {zone}")
    moment = utc("2026-01-01 00:00") + timedelta(minutes=15 * minute)
    expected = moment
    while not hours.is_open(expected):
        expected += timedelta(minutes=15)
    assert hours.opens_at(moment) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "22:00", "22-06", "24:00-06:00", "22:00-22:00", "22:00-06:00 Mars/Olympus"),
        *("22:00-06:00 ../etc/passwd", "22:00-06:00 Europe", "٢٢:00-06:00", "22:00-06:00 UTC\n"),
    ],
)
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_run_hours(text)
    assert caught.value.param == "run_hours"


def test_hours_are_written_with_their_zone() -> None:
    assert str(parse_run_hours("22:00-06:00")) == "22:00-06:00 UTC"
    assert str(parse_run_hours("22:00-06:00 Europe/Berlin")) == "22:00-06:00 Europe/Berlin"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("30m", 1_800), ("24h", 86_400), ("168h", 604_800), ("7d", 604_800)],
)
def test_a_window_is_ten_seconds_to_seven_days(text: str, seconds: int) -> None:
    assert parse_window(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "0h", "24", "9s", "169h", "8d", "999d", "1w", "01h", "-1h", "1h ", "٣h"]
)
def test_other_windows_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_window(text)
    assert caught.value.param == "completion_window"
