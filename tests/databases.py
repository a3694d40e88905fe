"""Databases of tests: made from nothing or from a template, and emptied faster than made anew."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from runner.db.models import Base
from runner.embedded import ServiceUrls


@contextmanager
def new_database(services: ServiceUrls, template: str = "template1") -> Iterator[str]:
    """The address of a database of its own, dropped at the end."""
    name = sql.Identifier(f"test_{uuid.uuid4().hex}")
    address, _, options = services.database_url.partition("?")
    with _connect(services.database_url) as connection:
        copy = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        connection.execute(copy.format(name, sql.Identifier(template)))
    url = f"{address.rpartition('/')[0]}/{name.as_string(None).strip(chr(34))}?{options}"
    yield url
    # Not WITH (FORCE): we may not end what vacuums there, but a plain DROP waits for that.
    with _connect(url) as connection:
        _end_others(connection)
    with _connect(services.database_url) as connection:
        connection.execute(sql.SQL("DROP DATABASE {}").format(name))


def name_of(database_url: str) -> str:
    """The name of the database that an address leads to."""
    return database_url.partition("?")[0].rpartition("/")[2]


def empty(database_url: str) -> None:
    """Take every row out, whoever else still looks at them."""
    with _connect(database_url) as connection:
        _end_others(connection)
        connection.execute("TRUNCATE audit")  # it refuses to have rows deleted
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != "audit":
                connection.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))


def _end_others(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend' AND usename = current_user"
    )


def _connect(database_url: str) -> psycopg.Connection[tuple[object, ...]]:
    address = database_url.replace("postgresql+psycopg://", "postgresql://", 1)
    return psycopg.connect(address, autocommit=True)
