"""Lines that take the answer of an equal one: which, at what price, and what that saves."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_STATES = ("open", "leased", "following", "done", "split", "dropped")
_FORMER_STATES = tuple(state for state in _STATES if state != "following")


def upgrade() -> None:
    for table in ("jobs", "schedules"):
        op.add_column(table, sa.Column("dedupe", sa.Text(), server_default="off", nullable=False))
        rule = "dedupe IN ('off', 'job', 'project')"
        op.create_check_constraint(op.f(f"ck_{table}_dedupe"), table, rule)
    op.add_column("jobs", sa.Column("reused_lines", sa.Integer(), nullable=True))
    op.add_column("job_models", _number("copies", sa.Integer()))
    _count_job_models(
        "(lines > 0) = (shards > 0) AND lines >= 0 AND copies >= 0 AND lines + copies > 0"
    )
    op.add_column("prices", _number("reused_nano_per_million", sa.BigInteger()))
    op.create_check_constraint(
        op.f("ck_prices_reused_not_negative"), "prices", "reused_nano_per_million >= 0"
    )
    op.add_column(
        "usage", sa.Column("reused", sa.Boolean(), server_default=sa.text("false"), nullable=False)
    )
    op.add_column("usage", _number("saved_nano", sa.BigInteger()))
    for table in ("usage_days", "job_accounts"):
        op.add_column(table, _number("reused_lines", sa.Integer()))
        op.add_column(table, _number("saved_nano", sa.BigInteger()))
    _allow_states(_STATES)
    op.create_index(
        "ix_shards_following",
        "shards",
        ["job_id", "shard_no"],
        postgresql_where=sa.text("state = 'following'"),
    )
    op.create_table(
        "copies",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("source_job_id", sa.Uuid(), nullable=False),
        sa.Column("source_idx", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "idx", name=op.f("pk_copies")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_table(
        "answer_keys",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("key", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "idx", name=op.f("pk_answer_keys")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index("ix_answer_keys_key", "answer_keys", ["key", "project_id"])


def downgrade() -> None:
    op.drop_table("answer_keys")
    op.drop_table("copies")
    op.drop_index("ix_shards_following", table_name="shards")
    op.execute("UPDATE shards SET state = 'open' WHERE state = 'following'")
    _allow_states(_FORMER_STATES)
    for table in ("job_accounts", "usage_days"):
        for column in ("saved_nano", "reused_lines"):
            op.drop_column(table, column)
    for column in ("saved_nano", "reused"):
        op.drop_column("usage", column)
    op.drop_constraint(op.f("ck_prices_reused_not_negative"), "prices", type_="check")
    op.drop_column("prices", "reused_nano_per_million")
    op.execute("UPDATE job_models SET lines = greatest(lines, 1), shards = greatest(shards, 1)")
    _count_job_models("lines > 0 AND shards > 0")
    op.drop_column("job_models", "copies")
    op.drop_column("jobs", "reused_lines")
    for table in ("schedules", "jobs"):
        op.drop_constraint(op.f(f"ck_{table}_dedupe"), table, type_="check")
        op.drop_column(table, "dedupe")


def _allow_states(states: tuple[str, ...]) -> None:
    op.drop_constraint(op.f("ck_shards_state"), "shards", type_="check")
    words = ", ".join(f"'{state}'" for state in states)
    op.create_check_constraint(op.f("ck_shards_state"), "shards", f"state IN ({words})")


def _count_job_models(rule: str) -> None:
    op.drop_constraint(op.f("ck_job_models_counts"), "job_models", type_="check")
    op.create_check_constraint(op.f("ck_job_models_counts"), "job_models", rule)


def _number(name: str, kind: sa.types.TypeEngine[int]) -> sa.Column[int]:
    return sa.Column(name, kind, server_default="0", nullable=False)
