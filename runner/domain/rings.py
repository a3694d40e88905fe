"""What one process rings another for; doorbell.py says when."""

from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID


class Bell(StrEnum):
    """Who should look: a CPU worker at one job, its prompts or its copies, at the runs of schedules
    or at events to deliver, or all engine workers at the queue or at orders."""

    INGEST = "ingest"
    COUNT = "count"
    COPY = "copy"
    FINALISE = "finalise"
    WAKE = "wake"
    CANCEL = "cancel"
    PROFILE = "profile"
    RUNS = "runs"
    DELIVER = "deliver"


@dataclass(frozen=True, slots=True)
class Ring:
    """One message: which bell, and for which job (none for a plain wake)."""

    bell: Bell
    job_id: UUID | None = None
