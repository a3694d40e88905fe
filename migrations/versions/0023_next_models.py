"""The model that an engine worker makes room for."""

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("next_model_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(
        op.f("fk_workers_next_model_id"), "workers", "models", ["next_model_id"], ["id"]
    )


def downgrade() -> None:
    op.drop_column("workers", "next_model_id")
