"""What an outage of the database means to a caller."""

import psycopg
from sqlalchemy.exc import DBAPIError

from runner.db.session import OUTAGES
from runner.domain.errors import RunnerError, StorageFull, Unavailable


def outage_of(error: BaseException) -> RunnerError | None:
    """The error to tell a caller whose transaction failed for want of the database, else None."""
    if not isinstance(error, OUTAGES):
        return None
    if isinstance(error, DBAPIError) and isinstance(error.orig, psycopg.errors.DiskFull):
        return StorageFull("The disk of the database is full; try again later.")
    return Unavailable("The database cannot be reached at the moment; try again in some seconds.")


def cause_of(error: BaseException) -> str:
    """What the database or its driver said, without the statement and on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
