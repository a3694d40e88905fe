"""Lines of old jobs are removed by a rule."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "retention",
        sa.Column("id", sa.SmallInteger(), server_default="1", nullable=False),
        sa.Column("days", sa.Integer(), nullable=True),
        sa.Column(
            "changed_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("applied_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint("id = 1", name=op.f("ck_retention_one_row")),
        sa.CheckConstraint("days BETWEEN 7 AND 3650", name=op.f("ck_retention_days")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_retention")),
    )
    op.add_column(
        "jobs", sa.Column("lines_removed_at", postgresql.TIMESTAMP(timezone=True), nullable=True)
    )


def downgrade() -> None:
    op.drop_column("jobs", "lines_removed_at")
    op.drop_table("retention")
