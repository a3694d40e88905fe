"""Sessions of browsers that signed in with a key."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = postgresql.TIMESTAMP(timezone=True)
    op.create_table(
        "sessions",
        sa.Column("token_sha256", postgresql.BYTEA(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=False),
        sa.Column("created_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("last_seen_at", moment, server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("ended_at", moment, nullable=True),
        sa.CheckConstraint("octet_length(token_sha256) = 32", name=op.f("ck_sessions_hash_length")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_sessions_project_id")
        ),
        sa.ForeignKeyConstraint(
            ["api_key_id"], ["api_keys.id"], name=op.f("fk_sessions_api_key_id")
        ),
        sa.PrimaryKeyConstraint("token_sha256", name=op.f("pk_sessions")),
    )
    op.create_index(op.f("ix_sessions_api_key_id"), "sessions", ["api_key_id"], unique=False)


def downgrade() -> None:
    op.drop_index(op.f("ix_sessions_api_key_id"), table_name="sessions")
    op.drop_table("sessions")
