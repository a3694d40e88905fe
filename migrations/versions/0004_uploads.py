"""Uploads in parts."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "uploads",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("project_id", sa.Uuid(), nullable=False),
        sa.Column("filename", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_expires_seconds", sa.Integer(), nullable=True),
        sa.Column("state", sa.Text(), server_default="pending", nullable=False),
        sa.Column("file_id", sa.Uuid(), nullable=True),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.Column("expires_at", postgresql.TIMESTAMP(timezone=True), nullable=False),
        sa.CheckConstraint(
            "state IN ('pending', 'completed', 'cancelled')", name=op.f("ck_uploads_state")
        ),
        sa.CheckConstraint(
            "(state = 'completed') = (file_id IS NOT NULL)", name=op.f("ck_uploads_file")
        ),
        sa.CheckConstraint("bytes > 0", name=op.f("ck_uploads_bytes_positive")),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_uploads_project_id")
        ),
        sa.ForeignKeyConstraint(["file_id"], ["files.id"], name=op.f("fk_uploads_file_id")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_uploads")),
    )
    op.create_index(
        "ix_uploads_pending",
        "uploads",
        ["expires_at"],
        unique=False,
        postgresql_where=sa.text("state = 'pending'"),
    )
    op.create_table(
        "upload_parts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("upload_id", sa.Uuid(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column(
            "created_at",
            postgresql.TIMESTAMP(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(
            ["upload_id"],
            ["uploads.id"],
            name=op.f("fk_upload_parts_upload_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_upload_parts")),
    )
    op.create_index(op.f("ix_upload_parts_upload_id"), "upload_parts", ["upload_id"], unique=False)
    op.create_table(
        "upload_chunks",
        sa.Column("part_id", sa.Uuid(), nullable=False),
        sa.Column("chunk_no", sa.Integer(), nullable=False),
        sa.Column("data", postgresql.BYTEA(), nullable=False),
        sa.ForeignKeyConstraint(
            ["part_id"],
            ["upload_parts.id"],
            name=op.f("fk_upload_chunks_part_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("part_id", "chunk_no", name=op.f("pk_upload_chunks")),
    )
    op.execute("ALTER TABLE upload_chunks ALTER COLUMN data SET STORAGE EXTERNAL")


def downgrade() -> None:
    op.drop_table("upload_chunks")
    op.drop_table("upload_parts")
    op.drop_table("uploads")
