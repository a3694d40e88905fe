"""Cron in time zones: a year of turned clocks against rules that are applied step by step."""

from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from runner.domain.cron import LONGEST_CRON, parse_cron
from runner.domain.errors import InvalidRequest

YEAR = datetime(2026, 1, 1, tzinfo=UTC)
CLOCK = YEAR.replace(tzinfo=None)
MINUTE, STEP = timedelta(minutes=1), timedelta(minutes=5)
# Turned by an hour at 2, by half an hour, at midnight in spring and never.
ZONES = ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago",
         "Africa/Cairo", "Asia/Kathmandu"]  # fmt: skip
NAMED_HOURS = ["30 2 * * *", "0 0 * * *", "*/15 1-3 * * *", "45 1 * * sun", "15,45 2 25-31 3,10 *"]
EVERY_HOUR = ["30 * * * *", "0 */3 * * *", "*/20 */2 * * sat,sun"]


def matches(cron: str, shown: datetime) -> bool:
    """Whether the fields name a time on the clock; dates and steps are read by cronsim."""
    return next(iter(CronSim(cron, shown - timedelta(seconds=1)))) == shown


def minutes_of(cron: str) -> set[tuple[int, int]]:
    """The minutes of a day that the first two fields name."""
    minute, hour = cron.split()[:2]
    day = islice(CronSim(f"{minute} {hour} * * *", CLOCK - MINUTE), 1440)
    return {(at.hour, at.minute) for at in day if at.date() == CLOCK.date()}


@cache
def clock_of(zone: str) -> list[datetime]:
    """What the clock of a zone shows over a year, each five minutes."""
    return [
        (YEAR + number * STEP).astimezone(ZoneInfo(zone)).replace(tzinfo=None)
        for number in range(365 * 288)
    ]


def by_the_rules(cron: str, zone: str) -> list[datetime]:
    """The moments of a year: every step that there is is looked at, and every gap."""
    wanted, whole_days = minutes_of(cron), cron.endswith(" * * *")
    every_hour = cron.split()[1].startswith("*")
    found, seen, before = [], set(), None
    for number, shown in enumerate(clock_of(zone)):
        times = [shown]
        if not every_hour and before is not None and shown - before > STEP:
            gap = range(1, (shown - before) // STEP)
            times = [*(before + n * STEP for n in gap), shown]
        before = shown
        for time in times:
            if (time.hour, time.minute) not in wanted or (not every_hour and time in seen):
                continue
            if whole_days or matches(cron, time):
                seen.add(time)
                found.append(YEAR + number * STEP)
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("text", NAMED_HOURS + EVERY_HOUR)
def test_over_a_year_each_planned_time_comes_once_by_the_rules(text: str, zone: str) -> None:
    expected = by_the_rules(text, zone)
    cron = parse_cron(text, zone)
    assert list(islice(cron.after(YEAR - MINUTE), len(expected))) == expected


@pytest.mark.parametrize("zone", ZONES)
def test_a_daily_time_comes_on_every_day_of_a_year(zone: str) -> None:
    for text in ("0 0 * * *", "30 1 * * *", "30 2 * * *", "15 3 * * *"):
        days = [
            at.astimezone(ZoneInfo(zone)).date()
            for at in islice(parse_cron(text, zone).after(YEAR), 365)
        ]
        assert [b - a for a, b in zip(days, days[1:], strict=False)] == [timedelta(days=1)] * 364


@pytest.mark.parametrize(
    ("text", "zone", "since", "expected"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12", "2026-03-29T01:00"),  # a gap: at 3
        ("*/20 2 * * *", "Europe/Berlin", "2026-03-28T12", "2026-03-29T01:00"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12", "2026-10-25T00:30"),  # the first 2:30
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-26T01:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10", "2026-10-26T01:30"),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T00:45", "2026-10-25T01:30"),  # 2:30 again
        ("0 0 * * *", "America/Santiago", "2026-09-05T12", "2026-09-06T04:00"),  # midnight's gap
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00", "2026-10-03T15:30"),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T12", "2026-04-04T14:45"),
        ("0 9 29 2 *", "UTC", "2026-01-01T00", "2028-02-29T09:00"),
    ],
)
def test_turned_clocks_in_particular(text: str, zone: str, since: str, expected: str) -> None:
    start, end = (datetime.fromisoformat(at).replace(tzinfo=UTC) for at in (since, expected))
    assert next(parse_cron(text, zone).after(start)) == end


def test_moments_go_on_from_any_moment_between() -> None:
    for text in (*NAMED_HOURS, *EVERY_HOUR):
        cron = parse_cron(text, "Europe/Berlin")
        for start in ("2026-03-28T20", "2026-10-24T20"):
            begin = datetime.fromisoformat(start).replace(tzinfo=UTC)
            in_one_go = [at for at in islice(cron.after(begin), 60) if at < begin + MINUTE * 900]
            step_by_step = {next(cron.after(begin + n * MINUTE)) for n in range(900)}
            assert sorted(step_by_step)[: len(in_one_go)] == in_one_go


def test_the_last_moments_of_a_span_are_found_without_going_through_it() -> None:
    cron = parse_cron("* * * * *", "Europe/Berlin")
    end = datetime(2026, 11, 1, 12, tzinfo=UTC)
    found = cron.between(datetime(1990, 1, 1, tzinfo=UTC), end, 50)
    assert found == [end - n * MINUTE for n in reversed(range(50))]
    yearly = parse_cron("0 0 1 1 *", "UTC")
    assert [at.year for at in yearly.between(YEAR, end, 50)] == [2026]
    assert [at.year for at in yearly.between(datetime(2020, 1, 1, tzinfo=UTC), end, 3)] == [
        2024, 2025, 2026,
    ]  # fmt: skip
    assert cron.between(end + MINUTE, end, 50) == []


def test_an_expression_is_told_back_in_words() -> None:
    assert parse_cron("30 2 * * *", "UTC").words == "At 02:30 every day"
    assert parse_cron(" 0  9 * * MON-fri ", "UTC").text == "0 9 * * MON-fri"


@pytest.mark.parametrize(
    "text",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "0 0 0 * *", "0 0 31 2 *",
     "0 0 31 4,6 *", "x * * * *", "*/0 * * * *", "\u0663 * * * *", "@daily", "0 0 * 13 *",
     "5-1 * * * *", "1,2,3," * LONGEST_CRON + "4 * * * *"],
)  # fmt: skip
def test_an_expression_that_says_nothing_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="cron") as refusal:
        parse_cron(text, "UTC")
    assert refusal.value.param == "cron"


@pytest.mark.parametrize(
    "zone", ["", "Berlin", "europe/berlin", "../../etc/passwd", "/etc/localtime", "UTC\0", "+01:00"]
)
def test_a_zone_that_does_not_exist_is_refused(zone: str) -> None:
    with pytest.raises(InvalidRequest, match="time zone") as refusal:
        parse_cron("* * * * *", zone)
    assert refusal.value.param == "zone"


@given(st.text(max_size=LONGEST_CRON))
def test_no_text_does_harm(text: str) -> None:
    try:
        cron = parse_cron(text, "America/New_York")
    except InvalidRequest:
        return
    first, second = islice(cron.after(YEAR), 2)
    assert YEAR < first < second
