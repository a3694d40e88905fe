"""How Alembic reaches the database: one transaction per run, with a lock and short waits."""

from alembic import context
from sqlalchemy import Connection, text

from runner.config import load_settings
from runner.db.models import Base
from runner.db.partitions import is_partition
from runner.db.session import create_database_engine

_MIGRATION_LOCK = 7_461_031  # any constant: two migrations at once must wait for each other


def _is_ours(name: str | None, kind: str, _parents: object) -> bool:
    return not (kind == "table" and name is not None and is_partition(name))


def _run(connection: Connection) -> None:
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        include_name=_is_ours,
        compare_type=True,
        compare_server_default=False,
    )
    with context.begin_transaction():
        connection.execute(text("SET LOCAL lock_timeout = '10s'"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
        context.run_migrations()


def run() -> None:
    """Use the caller's connection, or (from Alembic's own command) that of the settings."""
    connection = context.config.attributes.get("connection")
    if connection is not None:
        _run(connection)
        return
    url = load_settings().database_url
    if url is None:
        raise SystemExit("Set DATABASE_URL to the database to migrate.")
    with create_database_engine(url).connect() as own_connection:
        _run(own_connection)


run()
