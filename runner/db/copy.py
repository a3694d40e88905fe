"""Bulk loading through Postgres' COPY, on the session's own connection and transaction."""

from collections.abc import Iterable, Sequence
from typing import Any

import psycopg
from psycopg import sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session


def copy_rows(
    session: Session, table: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Append rows to a table (a statement of its own; nothing is read back).

    Errors of the driver come out as SQLAlchemy's, as from any other statement.
    """
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    connection = session.connection().connection.driver_connection
    if connection is None:
        raise RuntimeError("the session's connection is closed")
    try:
        with connection.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)
    except psycopg.Error as error:
        raise DBAPIError.instance(f"COPY {table}", None, error, psycopg.Error, True) from error
