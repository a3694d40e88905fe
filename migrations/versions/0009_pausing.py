"""Jobs can be paused."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "jobs", sa.Column("paused_at", postgresql.TIMESTAMP(timezone=True), nullable=True)
    )
    op.add_column("jobs", sa.Column("pause_reason", sa.Text(), nullable=True))
    op.create_check_constraint(
        op.f("ck_jobs_pause"),
        "jobs",
        "(paused_at IS NULL) = (pause_reason IS NULL) AND pause_reason IN ('user', 'budget')",
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_jobs_pause"), "jobs")
    op.drop_column("jobs", "pause_reason")
    op.drop_column("jobs", "paused_at")
