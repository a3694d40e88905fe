"""Time as the database tells it: the only clock that leases and deadlines know."""

from datetime import datetime

from sqlalchemy import ColumnElement, func


def seconds_from_now(seconds: float) -> ColumnElement[datetime]:
    """The database's present time plus some seconds."""
    return func.now() + func.make_interval(0, 0, 0, 0, 0, 0, seconds)
