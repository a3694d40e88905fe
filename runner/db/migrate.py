"""Bringing a database to the newest schema, from code.

Alembic is loaded by what needs it: most processes import this module and migrate nothing.
"""

from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from runner.db.partitions import ensure_partitions
from runner.db.session import create_database_engine
from runner.failpoints import FailPoint, hit

if TYPE_CHECKING:
    from alembic.config import Config

# A migration may have to rewrite every table.
_PATIENCE_SECONDS = 6 * 3600.0


def upgrade(database_url: str) -> None:
    """Apply every migration that is missing and make the partitions of the coming weeks."""
    from alembic import command

    engine = create_database_engine(database_url, patience_seconds=_PATIENCE_SECONDS)
    try:
        with engine.begin() as connection:
            command.upgrade(_config(connection), "head")
            hit(FailPoint.MIGRATE_BEFORE_COMMIT)
        hit(FailPoint.MIGRATE_BEFORE_PARTITIONS)
        with engine.begin() as connection:
            ensure_partitions(connection, datetime.now(UTC))
    finally:
        engine.dispose()


def downgrade(database_url: str, revision: str = "base") -> None:
    """Undo migrations down to a revision; data of dropped tables is lost."""
    from alembic import command

    engine = create_database_engine(database_url, patience_seconds=_PATIENCE_SECONDS)
    try:
        with engine.begin() as connection:
            command.downgrade(_config(connection), revision)
    finally:
        engine.dispose()


def pending(database_url: str) -> bool:
    """Whether the database lacks a migration."""
    engine = create_database_engine(database_url)
    try:
        with engine.connect() as connection:
            return current_revision(connection) != head_revision()
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """The newest migration that a database has."""
    from alembic.migration import MigrationContext

    return MigrationContext.configure(connection).get_current_revision()


@cache
def head_revision() -> str | None:
    """The newest migration there is (the files do not change while a process runs)."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(files("migrations"))).get_current_head()


def is_known(revision: str) -> bool:
    """Whether this version has the migration of that name."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(files("migrations")))
    return revision in {script.revision for script in scripts.walk_revisions()}


def _config(connection: Connection) -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    config.attributes["connection"] = connection
    return config
