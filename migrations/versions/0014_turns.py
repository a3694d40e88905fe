"""When a job may run, what weight a project has, and what each has lately had."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("start_after", postgresql.TIMESTAMP(timezone=True)))
    op.add_column("jobs", sa.Column("run_hours", sa.Text()))
    op.add_column(
        "projects", sa.Column("weight", sa.SmallInteger(), server_default="1", nullable=False)
    )
    op.create_check_constraint(op.f("ck_projects_weight"), "projects", "weight BETWEEN 1 AND 100")
    op.create_table(
        "fair_shares",
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("device_us", sa.Double(), nullable=False),
        sa.Column("lines", sa.Double(), nullable=False),
        sa.Column("as_of", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "worker_id", name=op.f("pk_fair_shares")),
    )


def downgrade() -> None:
    op.drop_table("fair_shares")
    op.drop_column("projects", "weight")
    op.drop_column("jobs", "run_hours")
    op.drop_column("jobs", "start_after")
