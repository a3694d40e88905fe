"""Counts of shards, and estimates of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "shard_counts",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("shard_no", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("counted_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        _number("lines", sa.Integer()),
        _number("input_tokens", sa.BigInteger()),
        _number("cached_tokens", sa.BigInteger()),
        _number("longest", sa.Integer()),
        _number("refused", sa.Integer()),
        _number("too_long", sa.Integer()),
        sa.Column(
            "too_long_idx", postgresql.ARRAY(sa.Integer()), server_default="{}", nullable=False
        ),
        _number("bounded_lines", sa.Integer()),
        _number("bounded_output", sa.BigInteger()),
        _number("unbounded_lines", sa.Integer()),
        _number("unbounded_output", sa.BigInteger()),
        sa.CheckConstraint(
            "counted_at IS NULL OR (cached_tokens BETWEEN 0 AND input_tokens"
            " AND lines = bounded_lines + unbounded_lines AND refused >= 0 AND too_long >= 0)",
            name=op.f("ck_shard_counts_sums"),
        ),
        sa.PrimaryKeyConstraint("job_id", "shard_no", name=op.f("pk_shard_counts")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index(
        "ix_shard_counts_open",
        "shard_counts",
        ["job_id", "shard_no"],
        postgresql_where=sa.text("counted_at IS NULL"),
    )
    op.create_table(
        "job_estimates",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("price_id", sa.Uuid(), nullable=False),
        sa.Column("prompt_bytes", sa.BigInteger(), nullable=False),
        sa.Column("counted_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        _number("refused", sa.Integer()),
        _number("too_long", sa.Integer()),
        sa.Column("given", postgresql.JSONB(), nullable=False),
        sa.Column("newest", postgresql.JSONB(), nullable=True),
        sa.Column("actual", postgresql.JSONB(), nullable=True),
        sa.Column("lengths", postgresql.JSONB(), nullable=True),
        sa.CheckConstraint(
            "prompt_bytes >= 0 AND refused >= 0 AND too_long >= 0",
            name=op.f("ck_job_estimates_counts"),
        ),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_estimates_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_job_estimates")),
    )
    op.create_index(
        "ix_job_estimates_open",
        "job_estimates",
        ["job_id"],
        postgresql_where=sa.text("counted_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("job_estimates")
    op.drop_table("shard_counts")


def _number(name: str, kind: sa.types.TypeEngine[int]) -> sa.Column[int]:
    return sa.Column(name, kind, server_default="0", nullable=False)
