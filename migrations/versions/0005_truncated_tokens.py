"""How many tokens each line's prompt lost to its truncation policy."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column(
        "usage", sa.Column("truncated_tokens", sa.Integer(), server_default="0", nullable=False)
    )


def downgrade() -> None:
    op.drop_column("usage", "truncated_tokens")
