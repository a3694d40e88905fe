"""Profiles of engine workers."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "profiles",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("state", sa.Text(), server_default="asked", nullable=False),
        sa.Column("steps_done", sa.Integer(), server_default="0", nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("trace", postgresql.BYTEA(), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('asked', 'taken', 'recording', 'done', 'failed')",
            name=op.f("ck_profiles_state"),
        ),
        sa.CheckConstraint(
            "(state = 'done') = (trace IS NOT NULL)", name=op.f("ck_profiles_trace")
        ),
        sa.CheckConstraint(
            "(state = 'failed') = (problem IS NOT NULL)", name=op.f("ck_profiles_problem")
        ),
        sa.CheckConstraint("steps > 0 AND steps_done >= 0", name=op.f("ck_profiles_steps")),
        sa.ForeignKeyConstraint(
            ["worker_id"],
            ["workers.id"],
            name=op.f("fk_profiles_worker_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_profiles")),
    )
    op.create_index(
        "uq_profiles_open",
        "profiles",
        ["worker_id"],
        unique=True,
        postgresql_where=sa.text("state IN ('asked', 'taken', 'recording')"),
    )
    # It comes compressed.
    op.execute("ALTER TABLE profiles ALTER COLUMN trace SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("profiles")
