"""Jobs that retry the unanswered lines of another."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("parent_id", sa.Uuid()))
    op.create_foreign_key(op.f("fk_jobs_parent_id"), "jobs", "jobs", ["parent_id"], ["id"])
    op.create_index(op.f("ix_jobs_parent_id"), "jobs", ["parent_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_parent_id"), table_name="jobs")
    op.drop_constraint(op.f("fk_jobs_parent_id"), "jobs", type_="foreignkey")
    op.drop_column("jobs", "parent_id")
