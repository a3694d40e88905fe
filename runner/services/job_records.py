"""What may be shown of a job: its row, its counts as sums over shards, its faults."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.db.models import Job, JobError
from runner.domain.ids import FileId, JobId, ProjectId, ScheduleId
from runner.domain.intake import LineFault
from runner.domain.reuse import Dedupe
from runner.domain.states import PAUSABLE_JOB_STATES, JobState, PauseReason
from runner.services.estimate_records import EstimateRecord, estimate_records
from runner.services.gone_lines import gone_views
from runner.services.job_models import model_names
from runner.services.job_totals import Totals, running_totals
from runner.services.waiting import WAITING, Wait, waits_of

ERRORS_SHOWN = 100
_PAUSE_SENTENCES = {
    PauseReason.USER: "Somebody paused it; it goes on when it is resumed.",
    PauseReason.BUDGET: "Its budget does not allow another line.",
}
_QUEUED = ("queued", "Waiting for a CPU worker.")  # the phase of a job nobody has read yet


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What may be shown of a job. Counts add up: ``total`` is 0 until the file was read."""

    id: JobId
    project_id: ProjectId
    parent_id: JobId | None
    endpoint: str
    input_file_id: FileId
    schedule_id: ScheduleId | None
    completion_window: str
    models: tuple[str, ...]
    state: JobState
    metadata: dict[str, str] | None
    priority: int
    tags: tuple[str, ...]
    p99_bound_ms: int | None
    start_after: datetime | None
    run_hours: str | None
    defaults: bytes | None
    total: int
    totals: Totals
    fault_count: int
    faults: tuple[LineFault, ...]
    output_file_id: FileId | None
    error_file_id: FileId | None
    phase: str
    phase_reason: str | None
    pause_reason: PauseReason | None
    queue_position: int | None
    max_cost_nano: int | None
    on_budget: str
    dedupe: Dedupe
    created_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expires_at: datetime
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None
    output_expires_seconds: int | None = None
    lines_removed_at: datetime | None = None
    estimate: EstimateRecord | None = None
    gone: dict[str, str] = field(default_factory=dict)
    """Why a view's lines are there no more, by view."""

    @property
    def model(self) -> str | None:
        """The model that its lines name; None if they name several, and until they are read."""
        return self.models[0] if len(self.models) == 1 else None

    @property
    def is_pausable(self) -> bool:
        """Whether it may be paused, or resumed."""
        return self.state in PAUSABLE_JOB_STATES


def as_created(job: JobRecord) -> JobRecord:
    """A job as it was told to whoever made it, whatever has become of it since."""
    phase, reason = _QUEUED
    return replace(
        job,
        models=(),
        state=JobState.VALIDATING,
        total=0,
        totals=Totals(),
        fault_count=0,
        faults=(),
        output_file_id=None,
        error_file_id=None,
        estimate=None,
        gone={},
        lines_removed_at=None,
        phase=phase,
        phase_reason=reason,
        pause_reason=None,
        queue_position=None,
        in_progress_at=None,
        finalizing_at=None,
        completed_at=None,
        failed_at=None,
        expired_at=None,
        cancelling_at=None,
        cancelled_at=None,
    )


def job_records(session: Session, jobs: Sequence[Job]) -> list[JobRecord]:
    running = [job.id for job in jobs if job.output_lines is None]
    totals = running_totals(session, running)
    models = model_names(session, [job.id for job in jobs])
    faults = _faults(session, [job.id for job in jobs if job.error_count])
    estimates = estimate_records(session, [job.id for job in jobs])
    waits = waits_of(session, jobs)
    gone = gone_views(session, [job.id for job in jobs])
    return [
        replace(
            _record_of(
                job,
                totals.get(job.id) or _frozen_totals(job),
                models.get(job.id, ()),
                faults.get(job.id, ()),
                waits.get(job.id),
            ),
            estimate=estimates.get(job.id),
            gone=gone.get(job.id, {}),
        )
        for job in jobs
    ]


def _frozen_totals(job: Job) -> Totals:
    return Totals(
        succeeded=job.output_lines or 0,
        failed=job.error_lines or 0,
        prompt_tokens=job.prompt_tokens or 0,
        cached_tokens=job.cached_tokens or 0,
        output_tokens=job.output_tokens or 0,
        billed_nano=job.billed_nano or 0,
        run_cost_nano=job.run_cost_nano or 0,
        reused=job.reused_lines or 0,
    )


def _faults(session: Session, job_ids: list[UUID]) -> dict[UUID, tuple[LineFault, ...]]:
    if not job_ids:
        return {}
    query = (
        select(JobError)
        .where(JobError.job_id.in_(job_ids), JobError.error_no < ERRORS_SHOWN)
        .order_by(JobError.job_id, JobError.error_no)
    )
    found: dict[UUID, tuple[LineFault, ...]] = {}
    for row in session.scalars(query):
        fault = LineFault(row.code, row.message, row.line, row.param)
        found[row.job_id] = (*found.get(row.job_id, ()), fault)
    return found


def _pause(job: Job) -> PauseReason | None:
    """Why the job is paused, as long as that means anything."""
    if job.pause_reason is None or job.state not in PAUSABLE_JOB_STATES:
        return None
    return PauseReason(job.pause_reason)


def _phase(job: Job) -> tuple[str, str | None]:
    """Where the job really is, in a word and a sentence."""
    state = JobState(job.state)
    pause = _pause(job)
    if pause is not None:
        return "paused", job.pause_note or _PAUSE_SENTENCES[pause]
    match state:
        case JobState.VALIDATING:
            reading = job.ingest_expires_at is not None
            return ("reading", None) if reading else _QUEUED
        case JobState.FINALIZING | JobState.CANCELLING:
            return state.value, "Waiting for lines in an engine to stop and files to be closed."
        case _:
            return state.value, None


def _record_of(
    job: Job,
    totals: Totals,
    models: tuple[str, ...],
    faults: tuple[LineFault, ...],
    wait: Wait | None,
) -> JobRecord:
    phase, reason = _phase(job)
    if wait is not None and _pause(job) is None:
        phase, reason = WAITING if wait.is_whole else phase, wait.reason
    ended = JobState(job.state).is_terminal
    if job.output_lines is None:
        totals = replace(totals, failed=totals.failed + job.invalid_items)
    return JobRecord(
        id=JobId(job.id),
        project_id=ProjectId(job.project_id),
        parent_id=JobId(job.parent_id) if job.parent_id else None,
        endpoint=job.endpoint,
        input_file_id=FileId(job.input_file_id),
        schedule_id=ScheduleId(job.schedule_id) if job.schedule_id else None,
        completion_window=job.completion_window,
        models=models,
        state=JobState(job.state),
        metadata=job.job_metadata,
        priority=job.priority,
        tags=tuple(job.tags),
        p99_bound_ms=job.p99_bound_ms,
        start_after=job.start_after,
        run_hours=job.run_hours,
        defaults=job.defaults,
        total=job.total_items or 0,
        totals=totals,
        fault_count=job.error_count,
        faults=faults,
        output_file_id=FileId(job.output_file_id) if ended and job.output_lines else None,
        error_file_id=FileId(job.error_file_id) if ended and job.error_lines else None,
        phase=phase,
        phase_reason=reason,
        pause_reason=_pause(job),
        queue_position=None if wait is None else wait.position,
        max_cost_nano=job.max_cost_nano,
        on_budget=job.on_budget,
        dedupe=Dedupe(job.dedupe),
        created_at=job.created_at,
        in_progress_at=job.in_progress_at,
        finalizing_at=job.finalizing_at,
        completed_at=job.completed_at,
        failed_at=job.failed_at,
        expires_at=job.expires_at,
        expired_at=job.expired_at,
        cancelling_at=job.cancelling_at,
        cancelled_at=job.cancelled_at,
        output_expires_seconds=job.output_expires_seconds,
        lines_removed_at=job.lines_removed_at,
    )
