"""Taking a backup of a database that is at work, and making an empty one what a backup says."""

import importlib.metadata
from collections.abc import Iterable
from pathlib import Path
from typing import Any, LiteralString

import psycopg
from psycopg import sql
from sqlalchemy import Connection, inspect, select, text

from runner.backup.archive import Archive, Contents, Manifest, write_archive
from runner.backup.errors import BackupError
from runner.backup.programs import read_dump, write_dump
from runner.db import migrate
from runner.db.models import Base
from runner.db.session import create_database_engine, create_session_factory
from runner.services.restoring import settle

Snapshot = psycopg.Connection[tuple[Any, ...]]

# What nobody would want to lose. Other rows are left by any process that merely ran.
_PRECIOUS = ("projects", "models", "files", "jobs")
_TABLES = (
    "SELECT relname FROM pg_class WHERE relkind = 'r'"
    " AND relnamespace = current_schema()::regnamespace ORDER BY relname"
)
_MOMENT = (
    "SELECT now(), current_setting('server_version'), (SELECT version_num FROM alembic_version)"
)


def back_up(database_url: str, target: Path) -> Manifest:
    """Write all of a database, as it is at one moment, into a file; it may be at work meanwhile.

    Raises:
        BackupError: the file exists, or the dump failed.
    """
    version = importlib.metadata.version("tokenmill")
    with psycopg.connect(_libpq(database_url), application_name="tokenmill backup") as connection:
        connection.execute("SET idle_in_transaction_session_timeout = 0")
        connection.commit()
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        try:
            (snapshot,) = _row(connection, "SELECT pg_export_snapshot()")
            contents = _contents(connection)
        except psycopg.Error as error:  # a table was dropped in this moment, or a restart came
            raise BackupError(f"The database could not be read: {error}. Try again.") from error
        # The dump sees what was counted, for as long as this transaction stays open.
        return write_archive(target, read_dump(database_url, snapshot), contents, version)


def restore(database_url: str, archive: Archive) -> None:
    """Make an empty database what a backup says, bring its schema up to date, free its leases.

    Raises:
        BackupError: the database is not empty, the backup is of a later version, or what was
            restored is not what was backed up.
    """
    contents = archive.manifest.contents
    if not migrate.is_known(contents.revision):
        raise BackupError(
            f"{archive.path} was made by Tokenmill {archive.manifest.tokenmill}, whose schema "
            f"({contents.revision}) this version does not know. Restore it with that version."
        )
    _make_room(database_url)
    write_dump(database_url, archive.dump())
    _check_counts(database_url, contents)
    migrate.upgrade(database_url)
    sessions = create_session_factory(database_url, pool_size=1)
    with sessions.begin() as session:
        settle(session, contents.made_at)
    sessions.kw["bind"].dispose()


def _contents(connection: Snapshot) -> Contents:
    names = [str(name) for (name,) in connection.execute(_TABLES)]
    if "alembic_version" not in names:
        raise BackupError("There is no installation in this database.")
    now, server, revision = _row(connection, _MOMENT)
    tables = _counts(connection, names)
    return Contents(made_at=now, revision=revision, server=server, tables=tables)


def _counts(connection: Snapshot, names: Iterable[str]) -> dict[str, int]:
    """How many rows each table has, partitions apart."""
    count = "SELECT count(*) FROM {}"
    return {
        name: _row(connection, sql.SQL(count).format(sql.Identifier(name)))[0] for name in names
    }


def _row(connection: Snapshot, query: LiteralString | sql.Composed) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return row


def _make_room(database_url: str) -> None:
    """Take an empty schema away, as a start of an installation leaves it; refuse any other."""
    engine = create_database_engine(database_url, pool_size=1)
    try:
        with engine.connect() as connection:
            present = set(inspect(connection).get_table_names())
            full = [name for name in _PRECIOUS if name in present and _has_rows(connection, name)]
        if full:
            raise BackupError(
                f"This installation is not empty: it has {', '.join(full)}. Restore into a new "
                "--data-dir, or into an empty database."
            )
        if "alembic_version" in present:
            migrate.downgrade(database_url)
            with engine.begin() as connection:
                connection.execute(text("DROP TABLE alembic_version"))
    finally:
        engine.dispose()


def _has_rows(connection: Connection, name: str) -> bool:
    return connection.scalar(select(Base.metadata.tables[name]).limit(1)) is not None


def _check_counts(database_url: str, contents: Contents) -> None:
    with psycopg.connect(_libpq(database_url)) as connection:
        found = _counts(connection, contents.tables)
    wrong = [name for name, rows in contents.tables.items() if found[name] != rows]
    if wrong:
        told = ", ".join(f"{name} has {found[name]} of {contents.tables[name]}" for name in wrong)
        raise BackupError(f"Not all rows were restored ({told}). Do not use this installation.")


def _libpq(database_url: str) -> str:
    return database_url.replace("postgresql+psycopg://", "postgresql://", 1)
