"""What becomes of planned times that came while nobody was there to start them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

ON_TIME = timedelta(minutes=5)  # a restart is no absence: what it delays is started as planned
LATEST_WITHIN = timedelta(hours=6)
ALL_AT_MOST = 7


class CatchUp(StrEnum):
    """The rule of a schedule: make up for nothing, for the latest time, or for all up to seven."""

    SKIP = "skip"
    LATEST = "latest"
    ALL = "all"


class Trigger(StrEnum):
    """Why there is a run: its time came, its time had come, or somebody asked for it."""

    CRON = "cron"
    CATCH_UP = "catch_up"
    MANUAL = "manual"


@dataclass(frozen=True, slots=True)
class Due:
    """A planned time that has come, and whether it is run."""

    planned_at: datetime
    trigger: Trigger
    is_missed: bool = False


def judge(rule: CatchUp, planned: Sequence[datetime], now: datetime) -> list[Due]:
    """Decide over planned times up to now, given in order, by the rule of their schedule."""
    late = [at for at in planned if now - at > ON_TIME]
    match rule:
        case CatchUp.SKIP:
            made_up = []
        case CatchUp.LATEST:
            # A time that is started as planned is the latest one.
            made_up = late[-1:] if len(late) == len(planned) else []
            made_up = [at for at in made_up if now - at <= LATEST_WITHIN]
        case CatchUp.ALL:
            made_up = late[-ALL_AT_MOST:]
    return [
        Due(at, Trigger.CATCH_UP, is_missed=at not in made_up)
        if now - at > ON_TIME
        else Due(at, Trigger.CRON)
        for at in planned
    ]
