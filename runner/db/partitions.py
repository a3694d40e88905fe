"""Weekly partitions of the big tables, made ahead of time."""

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from sqlalchemy import Connection, text

from runner.domain.ids import first_uuid_at

PARTITIONED_TABLES = (
    "work_items",
    "shards",
    "shard_counts",
    "copies",
    "answer_keys",
    "results",
    "usage",
)
WEEKS_AHEAD = 8

_LOCK = 7_461_033  # any constant: two processes at once must take turns
_NAME = re.compile(rf"^({'|'.join(PARTITIONED_TABLES)})_\d{{8}}$")
WEEK = timedelta(days=7)


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
        start = _monday(now) + week * WEEK
        for table in PARTITIONED_TABLES:
            name = f"{table}_{start:%Y%m%d}"
            if name not in present:
                _create(connection, table, name, start)
                made += 1
    return made


def present_weeks(connection: Connection) -> list[datetime]:
    """The Mondays (UTC) of the weeks that have partitions, the oldest first."""
    names = connection.scalars(text("SELECT relname FROM pg_class WHERE relispartition"))
    days = {name[-8:] for name in names if is_partition(name)}
    return [datetime.strptime(day, "%Y%m%d").replace(tzinfo=UTC) for day in sorted(days)]


def week_bounds(start: datetime) -> tuple[UUID, UUID]:
    """The first id of a week, and the first one after it."""
    return first_uuid_at(start), first_uuid_at(start + WEEK)


def week_bytes(connection: Connection, start: datetime) -> int:
    """What the partitions of a week take on the disk, with their indexes."""
    size = text(
        "SELECT coalesce(sum(pg_total_relation_size(to_regclass(name))), 0)"
        " FROM unnest(CAST(:names AS text[])) AS name"
    )
    return int(connection.execute(size, {"names": _names(start)}).scalar_one())


def drop_week(connection: Connection, start: datetime) -> None:
    """Drop the partitions of a week; each locks its parent until the transaction ends."""
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    for name in _names(start):
        connection.execute(text(f"DROP TABLE IF EXISTS {name}"))


def _names(start: datetime) -> list[str]:
    return [f"{table}_{start:%Y%m%d}" for table in PARTITIONED_TABLES]


def _create(connection: Connection, table: str, name: str, start: datetime) -> None:
    lower, upper = week_bounds(start)
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
