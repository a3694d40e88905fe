"""Jobs of several models: which, at what price, and what each of them is estimated to take."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

_IS_OPEN = sa.text("state = 'open'")


def upgrade() -> None:
    op.create_table(
        "job_models",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("price_id", sa.Uuid(), nullable=False),
        sa.Column("lines", sa.Integer(), nullable=False),
        sa.Column("shards", sa.Integer(), nullable=False),
        sa.CheckConstraint("lines > 0 AND shards > 0", name=op.f("ck_job_models_counts")),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_models_job_id"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_job_models_model_id")),
        sa.PrimaryKeyConstraint("job_id", "model_id", name=op.f("pk_job_models")),
    )
    op.execute(
        "INSERT INTO job_models (job_id, model_id, price_id, lines, shards)"
        " SELECT j.id, j.model_id, pinned.price_id,"
        " greatest(1, coalesce(j.total_items, 0) - j.invalid_items), pinned.shards"
        " FROM jobs j CROSS JOIN LATERAL (SELECT (array_agg(s.price_id))[1] AS price_id,"
        " count(*) AS shards FROM shards s WHERE s.job_id = j.id) pinned"
        " WHERE j.model_id IS NOT NULL AND pinned.shards > 0"
    )
    op.add_column("job_estimates", sa.Column("model_id", sa.Uuid(), nullable=True))
    op.execute("UPDATE job_estimates e SET model_id = j.model_id FROM jobs j WHERE j.id = e.job_id")
    op.alter_column("job_estimates", "model_id", nullable=False)
    _key_estimates("job_id", "model_id")
    _index_open_shards("job_id", "model_id", "suspect", "shard_no")


def downgrade() -> None:
    _index_open_shards("job_id", "suspect", "shard_no")
    # What was expected of a job of several models is no one figure any more.
    op.execute(
        "DELETE FROM job_estimates e USING jobs j WHERE j.id = e.job_id AND j.model_id IS NULL"
    )
    _key_estimates("job_id")
    op.drop_column("job_estimates", "model_id")
    op.drop_table("job_models")


def _key_estimates(*columns: str) -> None:
    op.drop_constraint(op.f("pk_job_estimates"), "job_estimates", type_="primary")
    op.create_primary_key(op.f("pk_job_estimates"), "job_estimates", list(columns))


def _index_open_shards(*columns: str) -> None:
    op.drop_index("ix_shards_open", table_name="shards", postgresql_where=_IS_OPEN)
    op.create_index("ix_shards_open", "shards", list(columns), postgresql_where=_IS_OPEN)
