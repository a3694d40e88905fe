"""The audit trail: append only, and a trigger keeps it so."""

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from runner.db.models import AuditEntry


def record(
    session: Session,
    action: str,
    subject: str,
    *,
    project_id: UUID | None = None,
    actor: str = "operator",
    detail: dict[str, Any] | None = None,
) -> None:
    """Note in this transaction who did what to which thing."""
    session.add(
        AuditEntry(
            action=action,
            subject=subject,
            project_id=project_id,
            actor=actor,
            detail=detail or {},
        )
    )
