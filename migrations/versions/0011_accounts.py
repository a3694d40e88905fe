"""Roll-ups, frozen accounts, waste, worker days and alerts; tags of jobs, energy of lines."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_NOW = sa.text("now()")


def upgrade() -> None:
    op.add_column(
        "jobs",
        sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
    )
    op.add_column("jobs", sa.Column("p99_bound_ms", sa.Integer(), nullable=True))
    op.add_column("usage", sa.Column("energy_uj", sa.BigInteger(), nullable=True))
    _create_roll_up()
    _create_account()
    _create_waste()
    _create_worker_days()
    _create_alerts()


def downgrade() -> None:
    for table in (
        "alerts",
        "worker_days",
        "job_waste",
        "job_accounts",
        "latency_days",
        "usage_days",
    ):
        op.drop_table(table)
    op.drop_column("usage", "energy_uj")
    op.drop_column("jobs", "p99_bound_ms")
    op.drop_column("jobs", "tags")


def _create_roll_up() -> None:
    op.create_table(
        "usage_days",
        _id("job_id"),
        sa.Column("day", sa.Date(), nullable=False),
        _id("model_id"),
        _id("price_id"),
        _id("project_id"),
        sa.Column("api_key_id", sa.Uuid(), nullable=True),
        *_sums(),
        _big("prompt_tokens"),
        _big("cached_tokens"),
        _big("output_tokens"),
        _big("billed_nano"),
        _big("run_cost_nano"),
        _at("rolled_at"),
        sa.PrimaryKeyConstraint(
            "job_id", "day", "model_id", "price_id", name=op.f("pk_usage_days")
        ),
    )
    op.create_index("ix_usage_days_project_id_day", "usage_days", ["project_id", "day"])
    op.create_table(
        "latency_days",
        _id("job_id"),
        sa.Column("day", sa.Date(), nullable=False),
        _id("model_id"),
        sa.Column("measure", sa.SmallInteger(), nullable=False),
        sa.Column("bucket", sa.SmallInteger(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint(
            "job_id", "day", "model_id", "measure", "bucket", name=op.f("pk_latency_days")
        ),
    )


def _create_account() -> None:
    times = ("queue_us", "first_token_us", "per_token_us", "total_us")
    op.create_table(
        "job_accounts",
        _id("job_id"),
        *_sums(),
        *(sa.Column(name, postgresql.ARRAY(sa.BigInteger()), nullable=True) for name in times),
        sa.Column("lanes", postgresql.JSONB(), server_default="{}", nullable=False),
        _at("frozen_at"),
        _owned_by("job_accounts", "job_id", "jobs"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_accounts")),
    )


def _create_waste() -> None:
    op.create_table(
        "job_waste",
        _id("job_id"),
        _id("worker_id"),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _big("device_us"),
        sa.CheckConstraint(
            "attempts >= 0 AND device_us >= 0", name=op.f("ck_job_waste_not_negative")
        ),
        sa.PrimaryKeyConstraint("job_id", "worker_id", name=op.f("pk_job_waste")),
    )


def _create_worker_days() -> None:
    op.create_table(
        "worker_days",
        _id("worker_id"),
        sa.Column("day", sa.Date(), nullable=False),
        _big("shared_us"),
        _big("idle_us"),
        _big("load_us"),
        _big("wasted_us"),
        _owned_by("worker_days", "worker_id", "workers"),
        sa.PrimaryKeyConstraint("worker_id", "day", name=op.f("pk_worker_days")),
    )


def _create_alerts() -> None:
    op.create_table(
        "alerts",
        _id("job_id"),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        _at("created_at"),
        sa.CheckConstraint("kind IN ('deadline', 'latency')", name=op.f("ck_alerts_kind")),
        _owned_by("alerts", "job_id", "jobs"),
        sa.PrimaryKeyConstraint("job_id", "kind", name=op.f("pk_alerts")),
    )


def _sums() -> tuple[sa.Column[int], ...]:
    return (
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        _big("device_us"),
        _big("preemptions"),
        _big("recomputed_tokens"),
        sa.Column("truncated_lines", sa.Integer(), nullable=False),
        _big("truncated_tokens"),
        _big("energy_uj"),
        sa.Column("metered_lines", sa.Integer(), nullable=False),
    )


def _id(name: str) -> "sa.Column[object]":
    return sa.Column(name, sa.Uuid(), nullable=False)


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _at(name: str) -> "sa.Column[object]":
    return sa.Column(name, postgresql.TIMESTAMP(timezone=True), server_default=_NOW, nullable=False)


def _owned_by(table: str, column: str, parent: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        [column], [f"{parent}.id"], name=op.f(f"fk_{table}_{column}"), ondelete="CASCADE"
    )
