"""Which planned times are run when nobody was there."""

from datetime import UTC, datetime, timedelta

import pytest

from runner.domain.catch_up import CatchUp, Trigger, judge
from runner.domain.overlap import Overlap, rule_for

NOW = datetime(2026, 11, 30, 12, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


def hours_ago(*hours: float) -> list[datetime]:
    return [NOW - hour * HOUR for hour in hours]


def started(rule: CatchUp, planned: list[datetime]) -> list[tuple[datetime, str]]:
    return [(due.planned_at, due.trigger) for due in judge(rule, planned, NOW) if not due.is_missed]


@pytest.mark.parametrize("rule", list(CatchUp))
def test_a_time_that_a_restart_delays_is_started_as_planned(rule: CatchUp) -> None:
    minutes = hours_ago(5 / 60, 4 / 60, 1 / 60, 0)
    assert started(rule, minutes) == [(at, "cron") for at in minutes]


def test_missed_times_can_be_left_out() -> None:
    planned = hours_ago(30, 3, 0.01)
    assert started(CatchUp.SKIP, planned) == [(planned[-1], Trigger.CRON)]
    assert [due.planned_at for due in judge(CatchUp.SKIP, planned, NOW)] == planned


def test_the_latest_is_made_up_for_within_six_hours() -> None:
    planned = hours_ago(8, 7, 6, 5.5)
    assert started(CatchUp.LATEST, planned) == [(planned[-1], Trigger.CATCH_UP)]
    assert started(CatchUp.LATEST, hours_ago(6)) == [(hours_ago(6)[0], Trigger.CATCH_UP)]
    assert started(CatchUp.LATEST, hours_ago(6.01)) == []


def test_the_latest_is_not_made_up_for_when_a_later_one_is_on_time() -> None:
    planned = hours_ago(2, 1, 0)
    assert started(CatchUp.LATEST, planned) == [(planned[-1], Trigger.CRON)]


def test_all_are_made_up_for_but_seven_at_most() -> None:
    planned = hours_ago(*range(20, 0, -1), 0)
    expected = [(at, "catch_up") for at in planned[-8:-1]] + [(planned[-1], "cron")]
    assert started(CatchUp.ALL, planned) == expected
    assert len(judge(CatchUp.ALL, planned, NOW)) == 21


def test_the_overlap_rule_bends_for_people_and_for_what_is_made_up() -> None:
    assert {rule_for(rule, Trigger.MANUAL) for rule in Overlap} == {Overlap.ALLOW}
    assert rule_for(Overlap.SKIP, Trigger.CATCH_UP) is Overlap.QUEUE
    assert rule_for(Overlap.ALLOW, Trigger.CATCH_UP) is Overlap.ALLOW
    assert [rule_for(rule, Trigger.CRON) for rule in Overlap] == list(Overlap)
