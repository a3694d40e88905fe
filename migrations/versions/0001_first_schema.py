"""The first schema: every table of the house, the four big ones partitioned by job."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TERMINAL_IS_FINAL = """
CREATE FUNCTION refuse_terminal_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'job % is % and cannot become %', OLD.id, OLD.state, NEW.state
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER terminal_is_final BEFORE UPDATE OF state ON jobs FOR EACH ROW
    WHEN (OLD.state IN ('completed', 'failed', 'expired', 'cancelled') AND NEW.state <> OLD.state)
    EXECUTE FUNCTION refuse_terminal_change();
"""

_AUDIT_IS_APPEND_ONLY = """
CREATE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit table is append only'
        USING ERRCODE = 'integrity_constraint_violation';
END $$;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON audit FOR EACH ROW
    EXECUTE FUNCTION refuse_audit_change();
"""


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column(
            "at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("project_id", sa.Uuid(), nullable=True),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("action", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column(
            "detail",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
    )
    op.create_table(
        "models",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("manifest", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("context_length", sa.Integer(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("retired_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
        sa.UniqueConstraint("name", name=op.f("uq_models_name")),
    )
    op.create_table(
        "projects",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "char_length(name) BETWEEN 1 AND 100", name=op.f("ck_projects_name_length")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_projects")),
        sa.UniqueConstraint("name", name=op.f("uq_projects_name")),
    )
    op.create_table(
        "results",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("line", postgresql.BYTEA(), nullable=False),
        sa.CheckConstraint("octet_length(line) > 2", name=op.f("ck_results_line_not_empty")),
        sa.PrimaryKeyConstraint("job_id", "idx", name=op.f("pk_results")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index(
        "ix_results_failed",
        "results",
        ["job_id", "idx"],
        unique=False,
        postgresql_where=sa.text("failed"),
    )
    op.create_table(
        "shards",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("shard_no", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("price_id", sa.Uuid(), nullable=False),
        sa.Column("idx", postgresql.ARRAY(sa.Integer()), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("attempt", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("suspect", sa.Boolean(), server_default=sa.text("false"), nullable=False),
        sa.Column("not_before", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("lease_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("succeeded", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed", sa.Integer(), server_default="0", nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("cached_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("billed_nano", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("run_cost_nano", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "(state = 'leased') = (worker_id IS NOT NULL AND lease_expires_at IS NOT NULL)",
            name=op.f("ck_shards_lease"),
        ),
        sa.CheckConstraint(
            "state <> 'done' OR succeeded + failed = cardinality(idx)",
            name=op.f("ck_shards_done_is_complete"),
        ),
        sa.CheckConstraint(
            "state IN ('open', 'leased', 'done', 'split', 'dropped')", name=op.f("ck_shards_state")
        ),
        sa.CheckConstraint("cardinality(idx) > 0", name=op.f("ck_shards_not_empty")),
        sa.CheckConstraint(
            "succeeded >= 0 AND failed >= 0 AND succeeded + failed <= cardinality(idx)",
            name=op.f("ck_shards_counts"),
        ),
        sa.PrimaryKeyConstraint("job_id", "shard_no", name=op.f("pk_shards")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_index(
        "ix_shards_leased",
        "shards",
        ["worker_id"],
        unique=False,
        postgresql_where=sa.text("state = 'leased'"),
    )
    op.create_index(
        "ix_shards_open",
        "shards",
        ["job_id", "suspect", "shard_no"],
        unique=False,
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "usage",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=True),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("price_id", sa.Uuid(), nullable=False),
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.SmallInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("cached_tokens", sa.Integer(), nullable=False),
        sa.Column("output_tokens", sa.Integer(), nullable=False),
        sa.Column("queue_us", sa.BigInteger(), nullable=False),
        sa.Column("prefill_us", sa.BigInteger(), nullable=False),
        sa.Column("first_token_us", sa.BigInteger(), nullable=False),
        sa.Column("decode_us", sa.BigInteger(), nullable=False),
        sa.Column("total_us", sa.BigInteger(), nullable=False),
        sa.Column("device_us", sa.BigInteger(), nullable=False),
        sa.Column("preemptions", sa.Integer(), nullable=False),
        sa.Column("recomputed_tokens", sa.Integer(), nullable=False),
        sa.Column("billed_nano", sa.BigInteger(), nullable=False),
        sa.Column("run_cost_nano", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "cached_tokens BETWEEN 0 AND prompt_tokens AND output_tokens >= 0 AND device_us >= 0 AND billed_nano >= 0 AND run_cost_nano >= 0",
            name=op.f("ck_usage_quantities"),
        ),
        sa.PrimaryKeyConstraint("job_id", "idx", name=op.f("pk_usage")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_table(
        "work_items",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("idx", sa.Integer(), nullable=False),
        sa.Column("custom_id", sa.Text(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.Column("byte_length", sa.Integer(), nullable=False),
        sa.CheckConstraint(
            "idx >= 0 AND byte_offset >= 0 AND byte_length > 0", name=op.f("ck_work_items_place")
        ),
        sa.PrimaryKeyConstraint("job_id", "idx", name=op.f("pk_work_items")),
        postgresql_partition_by="RANGE (job_id)",
    )
    op.create_table(
        "api_keys",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("hint", sa.Text(), nullable=False),
        sa.Column("secret_sha256", postgresql.BYTEA(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("last_used_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("revoked_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "octet_length(secret_sha256) = 32", name=op.f("ck_api_keys_hash_length")
        ),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_api_keys_project_id")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_keys")),
        sa.UniqueConstraint("secret_sha256", name=op.f("uq_api_keys_secret_sha256")),
    )
    op.create_index(op.f("ix_api_keys_project_id"), "api_keys", ["project_id"], unique=False)
    op.create_table(
        "files",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("sha256", postgresql.BYTEA(), nullable=True),
        sa.Column("job_id", sa.Uuid(), nullable=True),
        sa.Column("view", sa.Text(), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("deleted_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(purpose = 'batch_output') = (job_id IS NOT NULL)", name=op.f("ck_files_output_of")
        ),
        sa.CheckConstraint("purpose IN ('batch', 'batch_output')", name=op.f("ck_files_purpose")),
        sa.CheckConstraint(
            "view IS NULL OR view IN ('output', 'error')", name=op.f("ck_files_view")
        ),
        sa.CheckConstraint("(view IS NULL) = (job_id IS NULL)", name=op.f("ck_files_view_of")),
        sa.CheckConstraint("bytes >= 0", name=op.f("ck_files_bytes_not_negative")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_files_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_files")),
    )
    op.create_index("ix_files_project_id_id", "files", ["project_id", "id"], unique=False)
    op.create_index("uq_files_job_id_view", "files", ["job_id", "view"], unique=True)
    op.create_table(
        "outbox",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("payload", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "not_before",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("sent_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_outbox_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_outbox")),
    )
    op.create_index(
        "ix_outbox_unsent",
        "outbox",
        ["not_before"],
        unique=False,
        postgresql_where=sa.text("sent_at IS NULL"),
    )
    op.create_table(
        "prices",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=False),
        sa.Column("valid_from", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("currency", sa.Text(), server_default="USD", nullable=False),
        sa.Column("input_nano_per_million", sa.BigInteger(), nullable=False),
        sa.Column("cached_nano_per_million", sa.BigInteger(), nullable=False),
        sa.Column("output_nano_per_million", sa.BigInteger(), nullable=False),
        sa.Column("device_nano_per_hour", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "input_nano_per_million >= 0 AND cached_nano_per_million >= 0 AND output_nano_per_million >= 0 AND device_nano_per_hour >= 0",
            name=op.f("ck_prices_not_negative"),
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_prices_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
        sa.UniqueConstraint("model_id", "valid_from", name=op.f("uq_prices_model_id_valid_from")),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("model_id", sa.Uuid(), nullable=True),
        sa.Column("description", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "started_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column(
            "last_seen_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("ended_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("end_reason", sa.Text(), nullable=True),
        sa.Column("busy_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("idle_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("load_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("wasted_us", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stale_results", sa.Integer(), server_default="0", nullable=False),
        sa.Column(
            "stats",
            postgresql.JSONB(astext_type=sa.Text()),
            server_default=sa.text("'{}'"),
            nullable=False,
        ),
        sa.CheckConstraint(
            "(state IN ('ended', 'dead')) = (ended_at IS NOT NULL)", name=op.f("ck_workers_ended")
        ),
        sa.CheckConstraint("kind IN ('cpu', 'engine')", name=op.f("ck_workers_kind")),
        sa.CheckConstraint(
            "state IN ('starting', 'ready', 'draining', 'ended', 'dead')",
            name=op.f("ck_workers_state"),
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_workers_model_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workers")),
    )
    op.create_index(
        "ix_workers_live",
        "workers",
        ["last_seen_at"],
        unique=False,
        postgresql_where=sa.text("state IN ('starting','ready','draining')"),
    )
    op.create_table(
        "file_chunks",
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("chunk_no", sa.Integer(), nullable=False),
        sa.Column("data", postgresql.BYTEA(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_file_chunks_file_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "chunk_no", name=op.f("pk_file_chunks")),
    )
    op.create_table(
        "file_index",
        sa.Column("file_id", sa.Uuid(), nullable=False),
        sa.Column("block_no", sa.Integer(), nullable=False),
        sa.Column("byte_offset", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["file_id"], ["files.id"], name=op.f("fk_file_index_file_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("file_id", "block_no", name=op.f("pk_file_index")),
    )
    op.create_table(
        "jobs",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("api_key_id", sa.Uuid(), nullable=True),
        sa.Column("input_file_id", sa.Uuid(), nullable=False),
        sa.Column("endpoint", sa.Text(), nullable=False),
        sa.Column("completion_window", sa.Text(), nullable=False),
        sa.Column("metadata", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("priority", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("on_invalid", sa.Text(), server_default="fail", nullable=False),
        sa.Column("output_expires_seconds", sa.Integer(), nullable=True),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("request_sha256", postgresql.BYTEA(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("model_id", sa.Uuid(), nullable=True),
        sa.Column("total_items", sa.Integer(), nullable=True),
        sa.Column("invalid_items", sa.Integer(), server_default="0", nullable=False),
        sa.Column("error_count", sa.Integer(), server_default="0", nullable=False),
        sa.Column("output_file_id", sa.Uuid(), nullable=False),
        sa.Column("error_file_id", sa.Uuid(), nullable=False),
        sa.Column("output_lines", sa.Integer(), nullable=True),
        sa.Column("error_lines", sa.Integer(), nullable=True),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=True),
        sa.Column("cached_tokens", sa.BigInteger(), nullable=True),
        sa.Column("output_tokens", sa.BigInteger(), nullable=True),
        sa.Column("billed_nano", sa.BigInteger(), nullable=True),
        sa.Column("run_cost_nano", sa.BigInteger(), nullable=True),
        sa.Column("ingest_epoch", sa.Integer(), server_default="0", nullable=False),
        sa.Column("ingest_expires_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("in_progress_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("finalizing_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("completed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("failed_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.Column("expired_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("cancelling_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.Column("cancelled_at", postgresql.TIMESTAMP(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(state <> 'in_progress' OR in_progress_at IS NOT NULL) AND (state <> 'finalizing' OR finalizing_at IS NOT NULL) AND (state <> 'completed' OR completed_at IS NOT NULL) AND (state <> 'failed' OR failed_at IS NOT NULL) AND (state <> 'expired' OR expired_at IS NOT NULL) AND (state <> 'cancelling' OR cancelling_at IS NOT NULL) AND (state <> 'cancelled' OR cancelled_at IS NOT NULL)",
            name=op.f("ck_jobs_times"),
        ),
        sa.CheckConstraint("on_invalid IN ('fail', 'skip')", name=op.f("ck_jobs_on_invalid")),
        sa.CheckConstraint(
            "outcome IS NULL OR outcome IN ('completed', 'expired', 'cancelled')",
            name=op.f("ck_jobs_outcome"),
        ),
        sa.CheckConstraint(
            "state IN ('validating', 'in_progress', 'finalizing', 'completed', 'failed', 'expired', 'cancelling', 'cancelled')",
            name=op.f("ck_jobs_state"),
        ),
        sa.CheckConstraint("priority BETWEEN -100 AND 100", name=op.f("ck_jobs_priority")),
        sa.CheckConstraint("total_items >= 0 AND invalid_items >= 0", name=op.f("ck_jobs_counts")),
        sa.ForeignKeyConstraint(["api_key_id"], ["api_keys.id"], name=op.f("fk_jobs_api_key_id")),
        sa.ForeignKeyConstraint(
            ["input_file_id"], ["files.id"], name=op.f("fk_jobs_input_file_id")
        ),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_jobs_model_id")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_jobs_project_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_input_file_id"), "jobs", ["input_file_id"], unique=False)
    op.create_index(
        "ix_jobs_live",
        "jobs",
        ["state"],
        unique=False,
        postgresql_where=sa.text("state IN ('validating','in_progress','finalizing','cancelling')"),
    )
    op.create_index("ix_jobs_project_id_id", "jobs", ["project_id", "id"], unique=False)
    op.create_index(
        "uq_jobs_idempotency",
        "jobs",
        ["api_key_id", "idempotency_key"],
        unique=True,
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.create_table(
        "job_errors",
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("error_no", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("line", sa.Integer(), nullable=True),
        sa.Column("param", sa.Text(), nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_job_errors_job_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "error_no", name=op.f("pk_job_errors")),
    )
    # Large values are stored whole: compressing them cost six times the write speed.
    op.execute("ALTER TABLE file_chunks ALTER COLUMN data SET STORAGE EXTERNAL")
    op.execute("ALTER TABLE results ALTER COLUMN line SET STORAGE EXTERNAL")
    op.execute(_TERMINAL_IS_FINAL)
    op.execute(_AUDIT_IS_APPEND_ONLY)


def downgrade() -> None:
    op.drop_table("job_errors")
    op.drop_index(
        "uq_jobs_idempotency",
        table_name="jobs",
        postgresql_where=sa.text("idempotency_key IS NOT NULL"),
    )
    op.drop_index("ix_jobs_project_id_id", table_name="jobs")
    op.drop_index(
        "ix_jobs_live",
        table_name="jobs",
        postgresql_where=sa.text("state IN ('validating','in_progress','finalizing','cancelling')"),
    )
    op.drop_index(op.f("ix_jobs_input_file_id"), table_name="jobs")
    op.drop_table("jobs")
    op.drop_table("file_index")
    op.drop_table("file_chunks")
    op.drop_index(
        "ix_workers_live",
        table_name="workers",
        postgresql_where=sa.text("state IN ('starting','ready','draining')"),
    )
    op.drop_table("workers")
    op.drop_table("prices")
    op.drop_index(
        "ix_outbox_unsent", table_name="outbox", postgresql_where=sa.text("sent_at IS NULL")
    )
    op.drop_table("outbox")
    op.drop_index("uq_files_job_id_view", table_name="files")
    op.drop_index("ix_files_project_id_id", table_name="files")
    op.drop_table("files")
    op.drop_index(op.f("ix_api_keys_project_id"), table_name="api_keys")
    op.drop_table("api_keys")
    op.drop_table("work_items")
    op.drop_table("usage")
    op.drop_index("ix_shards_open", table_name="shards", postgresql_where=sa.text("state = 'open'"))
    op.drop_index(
        "ix_shards_leased", table_name="shards", postgresql_where=sa.text("state = 'leased'")
    )
    op.drop_table("shards")
    op.drop_index("ix_results_failed", table_name="results", postgresql_where=sa.text("failed"))
    op.drop_table("results")
    op.drop_table("projects")
    op.drop_table("models")
    op.drop_table("audit")
    op.execute("DROP FUNCTION refuse_terminal_change")
    op.execute("DROP FUNCTION refuse_audit_change")
