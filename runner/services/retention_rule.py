"""The rule of retention: for how many days the lines of ended jobs are kept."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import Retention
from runner.domain.errors import InvalidRequest
from runner.services.audit import record

FEWEST_DAYS, MOST_DAYS = 7, 3_650  # lines go by whole weeks
_INPUT_LIFE = timedelta(days=30)
_ROW = 1


@dataclass(frozen=True, slots=True)
class Rule:
    """``days`` is None while lines are kept for ever; ``applied_at`` is of the last removal."""

    days: int | None = None
    applied_at: datetime | None = None


def read_rule(session: Session) -> Rule:
    """The rule as it stands."""
    row = session.get(Retention, _ROW, populate_existing=True)
    return Rule() if row is None else Rule(row.days, row.applied_at)


def set_rule(session: Session, days: int | None) -> Rule:
    """Keep lines for so many days after the end of their job; for ever with None.

    Raises:
        InvalidRequest: the days are out of bounds.
    """
    if days is not None and not FEWEST_DAYS <= days <= MOST_DAYS:
        raise InvalidRequest(
            f"days must be between {FEWEST_DAYS} and {MOST_DAYS:,}: lines go by whole weeks.",
            param="days",
        )
    statement = insert(Retention).values(id=_ROW, days=days)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("id",),
            set_={name: statement.excluded[name] for name in ("days", "changed_at")},
        )
    )
    record(session, "retention.set", "installation", detail={"days": days})
    return read_rule(session)


def input_life(session: Session) -> timedelta:
    """How long an input lives for which nothing else is asked."""
    days = session.scalar(select(Retention.days))
    return _INPUT_LIFE if days is None else min(_INPUT_LIFE, timedelta(days=days))
