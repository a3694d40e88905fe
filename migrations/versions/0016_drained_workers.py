"""Workers that live and lease nothing, because an operator wants it so."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workers", sa.Column("drained_at", postgresql.TIMESTAMP(timezone=True)))


def downgrade() -> None:
    op.drop_column("workers", "drained_at")
