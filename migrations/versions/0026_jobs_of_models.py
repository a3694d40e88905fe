"""The newest jobs of a model are found without a walk over all jobs."""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_job_models_model_id_job_id", "job_models", ["model_id", "job_id"])


def downgrade() -> None:
    op.drop_index("ix_job_models_model_id_job_id", table_name="job_models")
