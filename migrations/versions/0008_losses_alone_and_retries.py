"""Losses of a lone line; idempotency keys by project, also of files."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "shards",
        sa.Column("alone_losses", sa.SmallInteger(), server_default="0", nullable=False),
    )
    op.drop_index("uq_jobs_idempotency", table_name="jobs")
    # Of jobs that two keys of one project made under the same idempotency key, the first keeps it.
    op.execute(
        "UPDATE jobs SET idempotency_key = NULL WHERE EXISTS (SELECT 1 FROM jobs AS earlier"
        " WHERE earlier.project_id = jobs.project_id"
        " AND earlier.idempotency_key = jobs.idempotency_key AND earlier.id < jobs.id)"
    )
    _make_index("jobs", "project_id")
    op.add_column("files", sa.Column("idempotency_key", sa.Text(), nullable=True))
    _make_index("files", "project_id")


def downgrade() -> None:
    op.drop_index("uq_files_idempotency", table_name="files")
    op.drop_column("files", "idempotency_key")
    op.drop_index("uq_jobs_idempotency", table_name="jobs")
    _make_index("jobs", "api_key_id")
    op.drop_column("shards", "alone_losses")


def _make_index(table: str, owner: str) -> None:
    op.create_index(
        f"uq_{table}_idempotency",
        table,
        [owner, "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
