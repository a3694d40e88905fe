"""What schedules ask of their jobs: a limit of money, tags and hours."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("schedules", sa.Column("max_cost_nano", sa.BigInteger(), nullable=True))
    op.add_column(
        "schedules", sa.Column("on_budget", sa.Text(), server_default="refuse", nullable=False)
    )
    op.add_column("schedules", sa.Column("run_hours", sa.Text(), nullable=True))
    op.add_column(
        "schedules",
        sa.Column(
            "tags", postgresql.ARRAY(sa.Text()), server_default=sa.text("'{}'"), nullable=False
        ),
    )
    op.create_check_constraint(
        op.f("ck_schedules_budget"),
        "schedules",
        "max_cost_nano >= 0 AND on_budget IN ('refuse', 'pause')",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_schedules_budget"), "schedules", type_="check")
    for column in ("tags", "run_hours", "on_budget", "max_cost_nano"):
        op.drop_column("schedules", column)
