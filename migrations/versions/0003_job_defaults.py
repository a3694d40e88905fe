"""A job's defaults: fields that its lines need not repeat."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("defaults", postgresql.BYTEA(), nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "defaults")
