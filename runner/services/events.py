"""Telling the outside what became true: events wait in the outbox until somebody delivers them."""

from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from runner.db.models import OutboxEvent


def announce(session: Session, project_id: UUID, kind: str, payload: dict[str, Any]) -> None:
    """Write an event of a project in the transaction that makes it true.

    Args:
        kind: what happened, e.g. ``batch.completed`` or ``job.deadline_at_risk``.
        payload: JSON; ids in it are texts of UUIDs (``job_id``), money is in nano-units.
    """
    session.add(OutboxEvent(project_id=project_id, kind=kind, payload=payload))
