"""The lane that a worker's model runs in, and why not in a faster one."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("lane", "lane_reason"):
        op.add_column("workers", sa.Column(name, sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    for name in ("lane_reason", "lane"):
        op.drop_column("workers", name)
