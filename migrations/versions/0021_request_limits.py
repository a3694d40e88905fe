"""How many requests a key may send in a minute."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("api_keys", sa.Column("requests_per_minute", sa.Integer(), nullable=True))
    op.add_column(
        "api_keys", sa.Column("requests_until", sa.DateTime(timezone=True), nullable=True)
    )
    op.create_check_constraint(
        op.f("ck_api_keys_requests_per_minute"), "api_keys", "requests_per_minute > 0"
    )


def downgrade() -> None:
    op.drop_constraint(op.f("ck_api_keys_requests_per_minute"), "api_keys", type_="check")
    for column in ("requests_until", "requests_per_minute"):
        op.drop_column("api_keys", column)
