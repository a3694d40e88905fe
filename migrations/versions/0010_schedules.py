"""Schedules and their runs; tags of files."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_LIVES = "state = 'active' AND deleted_at IS NULL"


def upgrade() -> None:
    op.add_column(
        "files",
        sa.Column("tags", postgresql.ARRAY(sa.Text()), server_default="{}", nullable=False),
    )
    _make_schedules()
    _make_runs()
    op.add_column("jobs", sa.Column("schedule_id", sa.Uuid(), nullable=True))
    op.create_foreign_key(op.f("fk_jobs_schedule_id"), "jobs", "schedules", ["schedule_id"], ["id"])
    op.create_index(op.f("ix_jobs_schedule_id"), "jobs", ["schedule_id"])


def _make_schedules() -> None:
    op.create_table(
        "schedules",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=True),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("cron", sa.Text(), nullable=False),
        sa.Column("zone", sa.Text(), nullable=False),
        sa.Column("catch_up", sa.Text(), nullable=False),
        sa.Column("overlap", sa.Text(), nullable=False),
        sa.Column("input_file_id", sa.Uuid(), nullable=True),
        sa.Column("input_tag", sa.Text(), nullable=True),
        sa.Column("input_path", sa.Text(), nullable=True),
        sa.Column("output_path", sa.Text(), nullable=True),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("on_invalid", sa.Text(), server_default="skip", nullable=False),
        sa.Column("metadata", postgresql.JSONB(), nullable=True),
        sa.Column("defaults", postgresql.BYTEA(), nullable=True),
        sa.Column("state", sa.Text(), server_default="active", nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("next_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        _made_now("created_at"),
        sa.Column("deleted_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "char_length(name) BETWEEN 1 AND 100", name=op.f("ck_schedules_name_length")
        ),
        sa.CheckConstraint("state IN ('active', 'paused')", name=op.f("ck_schedules_state")),
        sa.CheckConstraint(
            "catch_up IN ('skip', 'latest', 'all')", name=op.f("ck_schedules_catch_up")
        ),
        sa.CheckConstraint(
            "overlap IN ('skip', 'queue', 'allow')", name=op.f("ck_schedules_overlap")
        ),
        sa.CheckConstraint("on_invalid IN ('fail', 'skip')", name=op.f("ck_schedules_on_invalid")),
        sa.CheckConstraint(
            "num_nonnulls(input_file_id, input_tag, input_path) = 1",
            name=op.f("ck_schedules_one_input"),
        ),
        sa.CheckConstraint(
            f"next_at IS NOT NULL OR NOT ({_LIVES})", name=op.f("ck_schedules_next")
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name="fk_schedules_project_id"),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name="fk_schedules_api_key_id"),
        sa.ForeignKeyConstraint(["input_file_id"], ["files.id"], name="fk_schedules_input_file_id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedules")),
    )
    op.create_index(
        "uq_schedules_name",
        "schedules",
        ["project_id", "name"],
        unique=True,
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_index(
        "ix_schedules_next_at", "schedules", ["next_at"], postgresql_where=sa.text(_LIVES)
    )
    op.create_index(op.f("ix_schedules_input_file_id"), "schedules", ["input_file_id"])


def _make_runs() -> None:
    op.create_table(
        "schedule_runs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("schedule_id", sa.Uuid(), nullable=False),
        sa.Column("planned_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("trigger", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), server_default="waiting", nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("started_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("output_state", sa.Text(), server_default="none", nullable=False),
        sa.Column("output_problem", sa.Text(), nullable=True),
        sa.Column("tries", sa.SmallInteger(), server_default="0", nullable=False),
        _made_now("next_try_at"),
        _made_now("created_at"),
        sa.CheckConstraint(
            "trigger IN ('cron', 'catch_up', 'manual')", name=op.f("ck_schedule_runs_trigger")
        ),
        sa.CheckConstraint(
            "state IN ('waiting', 'started', 'skipped', 'failed')",
            name=op.f("ck_schedule_runs_state"),
        ),
        sa.CheckConstraint(
            "(state = 'started') = (job_id IS NOT NULL)", name=op.f("ck_schedule_runs_job")
        ),
        sa.CheckConstraint(
            "state NOT IN ('skipped', 'failed') OR (code IS NOT NULL AND reason IS NOT NULL)",
            name=op.f("ck_schedule_runs_reason"),
        ),
        sa.CheckConstraint(
            "output_state IN ('none', 'waiting', 'written', 'failed')",
            name=op.f("ck_schedule_runs_output"),
        ),
        sa.ForeignKeyConstraint(
            ["schedule_id"], ["schedules.id"], name="fk_schedule_runs_schedule_id"
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_schedule_runs_job_id"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_schedule_runs")),
        sa.UniqueConstraint("job_id", name=op.f("uq_schedule_runs_job_id")),
        # Which makes a planned time happen once: with two beats, and with a clock set back.
        sa.UniqueConstraint(
            "schedule_id", "planned_at", name=op.f("uq_schedule_runs_schedule_id_planned_at")
        ),
    )
    op.create_index(
        "ix_schedule_runs_open",
        "schedule_runs",
        ["next_try_at"],
        postgresql_where=sa.text("state = 'waiting' OR output_state = 'waiting'"),
    )


def _made_now(name: str) -> sa.Column[object]:
    return sa.Column(
        name,
        postgresql.TIMESTAMP(timezone=True),
        server_default=sa.text("now()"),
        nullable=False,
    )


def downgrade() -> None:
    op.drop_index(op.f("ix_jobs_schedule_id"), table_name="jobs")
    op.drop_constraint(op.f("fk_jobs_schedule_id"), "jobs", type_="foreignkey")
    op.drop_column("jobs", "schedule_id")
    op.drop_table("schedule_runs")
    op.drop_table("schedules")
    op.drop_column("files", "tags")
