"""The fields of a form that say when and how soon a job runs."""

from collections.abc import Mapping
from datetime import UTC, datetime

from runner.domain.errors import InvalidRequest
from runner.domain.windows import DEFAULT_WINDOW

PRIORITY, WINDOW, START_AFTER, RUN_HOURS = "priority", "window", "start_after", "run_hours"
PLAN_FIELDS = (PRIORITY, WINDOW, START_AFTER, RUN_HOURS)
WINDOWS = ("1h", "6h", "12h", DEFAULT_WINDOW, "3d", "7d")


def read_priority(fields: Mapping[str, str]) -> int:
    """The priority; an empty field is 0."""
    text = fields.get(PRIORITY, "").strip() or "0"
    try:
        return int(text)
    except ValueError:
        raise InvalidRequest("The priority is a whole number.", param=PRIORITY) from None


def read_start(fields: Mapping[str, str]) -> datetime | None:
    """The moment of a ``datetime-local`` field, which is in UTC here."""
    text = fields.get(START_AFTER, "").strip()
    if not text:
        return None
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidRequest("The start is a date and a time.", param=START_AFTER) from None


def read_hours(fields: Mapping[str, str]) -> str | None:
    """The hours as they were written, or None."""
    return fields.get(RUN_HOURS, "").strip() or None
