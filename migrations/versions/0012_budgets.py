"""Budgets, what was spent of them, their alerts; limits of jobs, reservations of shards."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

# What was billed before this table was there, as commits would have noted it.
_SPENT_SO_FAR = """
INSERT INTO spending (payer_id, month, worker_id, billed_nano)
SELECT payer_id, month, worker_id, sum(billed_nano) FROM (
    SELECT project_id AS payer_id, date_trunc('month', timezone('UTC', created_at))::date AS month,
        worker_id, billed_nano FROM usage
    UNION ALL
    SELECT api_key_id, date_trunc('month', timezone('UTC', created_at))::date,
        worker_id, billed_nano FROM usage WHERE api_key_id IS NOT NULL
) AS paid GROUP BY payer_id, month, worker_id
"""


def upgrade() -> None:
    op.create_table(
        "budgets",
        sa.Column("payer_id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=True),
        sa.Column("limit_nano", sa.BigInteger(), nullable=False),
        _now("created_at"),
        _now("updated_at"),
        sa.CheckConstraint("limit_nano >= 0", name=op.f("ck_budgets_not_negative")),
        sa.CheckConstraint(
            "payer_id = coalesce(api_key_id, project_id)", name=op.f("ck_budgets_payer")
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_budgets_project_id")
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_budgets_api_key_id")
        ),
        sa.PrimaryKeyConstraint("payer_id", name=op.f("pk_budgets")),
    )
    op.create_index(op.f("ix_budgets_project_id"), "budgets", ["project_id"])
    op.create_table(
        "spending",
        sa.Column("payer_id", sa.Uuid(), nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("billed_nano", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("payer_id", "month", "worker_id", name=op.f("pk_spending")),
    )
    op.execute(_SPENT_SO_FAR)
    op.create_table(
        "budget_alerts",
        sa.Column("payer_id", sa.Uuid(), nullable=False),
        sa.Column("month", sa.Date(), nullable=False),
        sa.Column("limit_nano", sa.BigInteger(), nullable=False),
        sa.Column("percent", sa.SmallInteger(), nullable=False),
        _now("created_at"),
        sa.PrimaryKeyConstraint(
            "payer_id", "month", "limit_nano", "percent", name=op.f("pk_budget_alerts")
        ),
    )
    op.add_column("jobs", sa.Column("max_cost_nano", sa.BigInteger(), nullable=True))
    op.add_column(
        "jobs", sa.Column("on_budget", sa.Text(), server_default="refuse", nullable=False)
    )
    op.add_column("jobs", sa.Column("pause_note", sa.Text(), nullable=True))
    op.add_column("jobs", sa.Column("pause_needs_nano", sa.BigInteger(), nullable=True))
    op.create_check_constraint(
        op.f("ck_jobs_budget"), "jobs", "max_cost_nano >= 0 AND on_budget IN ('refuse', 'pause')"
    )
    op.add_column(
        "shards",
        sa.Column("reserved_nano", sa.BigInteger(), server_default="0", nullable=False),
    )
    op.create_check_constraint(
        op.f("ck_shards_reserved"),
        "shards",
        "reserved_nano >= 0 AND (state = 'leased' OR reserved_nano = 0)",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_shards_reserved"), "shards")
    op.drop_column("shards", "reserved_nano")
    op.drop_constraint(op.f("ck_jobs_budget"), "jobs")
    for column in ("pause_needs_nano", "pause_note", "on_budget", "max_cost_nano"):
        op.drop_column("jobs", column)
    for table in ("budget_alerts", "spending", "budgets"):
        op.drop_table(table)


def _now(name: str) -> "sa.Column[object]":
    return sa.Column(
        name,
        postgresql.TIMESTAMP(timezone=True),
        server_default=sa.text("now()"),
        nullable=False,
    )
