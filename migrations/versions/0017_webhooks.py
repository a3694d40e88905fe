"""Webhooks, the deliveries of events to them, and every try."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("kinds", postgresql.ARRAY(sa.Text()), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("previous_secret", sa.Text(), nullable=True),
        _moment("previous_secret_until"),
        _now("created_at"),
        _moment("paused_at"),
        sa.Column("pause_reason", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "char_length(url) BETWEEN 1 AND 2000", name=op.f("ck_webhooks_url_length")
        ),
        sa.CheckConstraint(
            "char_length(description) <= 200", name=op.f("ck_webhooks_description_length")
        ),
        sa.CheckConstraint(
            "(previous_secret IS NULL) = (previous_secret_until IS NULL)",
            name=op.f("ck_webhooks_previous_secret"),
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_webhooks_project_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_project_id"), "webhooks", ["project_id"])
    op.create_table(
        "deliveries",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("webhook_id", sa.Uuid(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="waiting", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        _now("created_at"),
        _now("not_before"),
        _moment("ended_at"),
        sa.CheckConstraint(
            "state IN ('waiting', 'delivered', 'failed')", name=op.f("ck_deliveries_state")
        ),
        sa.CheckConstraint(
            "(state = 'waiting') = (ended_at IS NULL)", name=op.f("ck_deliveries_ended")
        ),
        sa.ForeignKeyConstraint(
            ["webhook_id"],
            ["webhooks.id"],
            name=op.f("fk_deliveries_webhook_id"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["event_id"], ["outbox.id"], name=op.f("fk_deliveries_event_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deliveries")),
    )
    op.create_index(
        "ix_deliveries_due",
        "deliveries",
        ["not_before"],
        postgresql_where=sa.text("state = 'waiting'"),
    )
    op.create_index("ix_deliveries_webhook_id", "deliveries", ["webhook_id", "id"])
    op.create_index(op.f("ix_deliveries_event_id"), "deliveries", ["event_id"])
    op.create_table(
        "delivery_attempts",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("delivery_id", sa.Uuid(), nullable=False),
        _now("at"),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("fault", sa.Text(), nullable=True),
        sa.Column("duration_ms", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["delivery_id"],
            ["deliveries.id"],
            name=op.f("fk_delivery_attempts_delivery_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_delivery_attempts")),
    )
    op.create_index(op.f("ix_delivery_attempts_delivery_id"), "delivery_attempts", ["delivery_id"])


def downgrade() -> None:
    for table in ("delivery_attempts", "deliveries", "webhooks"):
        op.drop_table(table)


def _moment(name: str) -> "sa.Column[object]":
    return sa.Column(name, postgresql.TIMESTAMP(timezone=True), nullable=True)


def _now(name: str) -> "sa.Column[object]":
    return sa.Column(
        name,
        postgresql.TIMESTAMP(timezone=True),
        server_default=sa.text("now()"),
        nullable=False,
    )
