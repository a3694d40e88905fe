"""Bytes of files that are gone are dropped piece by piece, those of outputs too."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# What was dropped before there was the column.
_NOTE_THE_PURGED = """
UPDATE files SET purged_at = now()
WHERE view IS NULL AND (deleted_at IS NOT NULL OR expires_at <= now())
    AND NOT EXISTS (SELECT FROM file_chunks WHERE file_id = files.id)
"""


def upgrade() -> None:
    op.add_column(
        "files", sa.Column("purged_at", postgresql.TIMESTAMP(timezone=True), nullable=True)
    )
    op.execute(_NOTE_THE_PURGED)
    op.create_index(
        "ix_files_unpurged",
        "files",
        ["expires_at"],
        postgresql_where=sa.text("purged_at IS NULL"),
    )
    op.alter_column("results", "line", nullable=True)


def downgrade() -> None:
    op.execute("DELETE FROM results WHERE line IS NULL")
    op.alter_column("results", "line", nullable=False)
    op.drop_index("ix_files_unpurged", table_name="files")
    op.drop_column("files", "purged_at")
