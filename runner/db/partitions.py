"""Weekly partitions of the big tables, made ahead of time."""

import re
from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, text

from runner.domain.ids import first_uuid_at

PARTITIONED_TABLES = ("work_items", "shards", "shard_counts", "results", "usage")
WEEKS_AHEAD = 8

_LOCK = 7_461_033  # any constant: two processes at once must take turns
_NAME = re.compile(rf"^({'|'.join(PARTITIONED_TABLES)})_\d{{8}}$")
_WEEK = timedelta(days=7)


def is_partition(table: str) -> bool:
    """Whether a table's name is that of one of our partitions."""
    return _NAME.match(table) is not None


def ensure_partitions(connection: Connection, now: datetime) -> int:
    """Create what is missing from this week to ``WEEKS_AHEAD``; returns how many were made.

    Each is built beside its parent and then attached, which takes no lock that readers or writers
    of the parent would wait for.
    """
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    present = set(
        connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition")).all()
    )
    made = 0
    for week in range(-1, WEEKS_AHEAD + 1):
        start = _monday(now) + week * _WEEK
        for table in PARTITIONED_TABLES:
            name = f"{table}_{start:%Y%m%d}"
            if name not in present:
                _create(connection, table, name, start)
                made += 1
    return made


def _create(connection: Connection, table: str, name: str, start: datetime) -> None:
    lower, upper = first_uuid_at(start), first_uuid_at(start + _WEEK)
    connection.execute(text(f"CREATE TABLE {name} (LIKE {table} INCLUDING ALL)"))
    connection.execute(
        text(
            f"ALTER TABLE {table} ATTACH PARTITION {name}"
            f" FOR VALUES FROM ('{lower}') TO ('{upper}')"
        )
    )


def _monday(now: datetime) -> datetime:
    day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    return day - timedelta(days=day.weekday())
