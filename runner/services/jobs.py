"""Jobs: making, showing, listing and cancelling them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runner.db.models import File, Job, JobError, Model, OutboxEvent, Shard
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import FileId, JobId, ProjectId, new_uuid
from runner.domain.intake import LineFault
from runner.domain.lines import ENDPOINTS
from runner.domain.states import JobState, ShardState
from runner.doorbell import Bell, ring
from runner.services import files
from runner.services.audit import record
from runner.services.keys import Caller
from runner.services.pages import Page, cut

WINDOWS = {"24h": timedelta(hours=24)}
ERRORS_SHOWN = 100
_REPEAT_WITHIN = timedelta(minutes=10)  # a client's retry of a create comes within this time


@dataclass(frozen=True, slots=True)
class NewJob:
    """What a create asks for. ``is_retry`` tells that the client says it is sending it again."""

    input_file_id: FileId
    endpoint: str
    completion_window: str
    request_sha256: bytes
    metadata: dict[str, str] | None = None
    priority: int = 0
    on_invalid: str = "fail"
    output_expires_seconds: int | None = None
    idempotency_key: str | None = None
    is_retry: bool = False


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over a job's accepted lines: tokens, and money in nano-units."""

    succeeded: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    billed_nano: int = 0
    run_cost_nano: int = 0


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What may be shown of a job. Counts add up: ``total`` is 0 until the file was read."""

    id: JobId
    project_id: ProjectId
    endpoint: str
    input_file_id: FileId
    completion_window: str
    model: str | None
    state: JobState
    metadata: dict[str, str] | None
    priority: int
    total: int
    totals: Totals
    fault_count: int
    faults: tuple[LineFault, ...]
    output_file_id: FileId | None
    error_file_id: FileId | None
    phase: str
    phase_reason: str | None
    created_at: datetime
    in_progress_at: datetime | None
    finalizing_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    expires_at: datetime
    expired_at: datetime | None
    cancelling_at: datetime | None
    cancelled_at: datetime | None


def create_job(session: Session, caller: Caller, new: NewJob) -> JobRecord:
    """Accept a job; its file is checked soon after, elsewhere.

    A repeat of the same request (same idempotency key, or a client retry of the same body within
    ten minutes) returns the job that the first one made.
    """
    _check(new)
    earlier = _earlier_job(session, caller, new)
    if earlier is not None:
        return get_job(session, caller.project_id, earlier)
    _check_input_file(session, caller.project_id, new.input_file_id)
    job_id = JobId(new_uuid())
    row = Job(
        id=job_id,
        project_id=caller.project_id,
        api_key_id=caller.api_key_id,
        input_file_id=new.input_file_id,
        endpoint=new.endpoint,
        completion_window=new.completion_window,
        job_metadata=new.metadata,
        priority=new.priority,
        on_invalid=new.on_invalid,
        output_expires_seconds=new.output_expires_seconds,
        idempotency_key=new.idempotency_key,
        request_sha256=new.request_sha256,
        state=JobState.VALIDATING,
        expires_at=func.now() + WINDOWS[new.completion_window],
    )
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:  # the same idempotency key, a moment earlier
        earlier = _earlier_job(session, caller, new)
        if earlier is None:
            raise
        return get_job(session, caller.project_id, earlier)
    record(session, "job.create", str(job_id), project_id=caller.project_id, actor="api")
    ring(session, Bell.INGEST, job_id)
    return get_job(session, caller.project_id, job_id)


def get_job(session: Session, project_id: ProjectId, job_id: UUID) -> JobRecord:
    """A job of the project."""
    row = session.get(Job, job_id, populate_existing=True)
    if row is None or row.project_id != project_id:
        raise NotFound("No such batch in this project.", param="batch_id")
    return _records(session, [row])[0]


def list_jobs(
    session: Session, project_id: ProjectId, after: JobId | None, limit: int
) -> Page[JobRecord]:
    """A page of the project's jobs, newest first."""
    query = select(Job).where(Job.project_id == project_id)
    if after is not None:
        query = query.where(Job.id < get_job(session, project_id, after).id)
    rows = session.scalars(query.order_by(Job.id.desc()).limit(limit + 1)).all()
    page = cut(rows, limit)
    return Page(_records(session, page.items), page.has_more)


def cancel_job(session: Session, project_id: ProjectId, job_id: UUID) -> JobRecord:
    """Stop a job: open work is dropped now, work in an engine is aborted within a second.

    Finished lines stay and are billed. Repeating it while it is under way is harmless.
    """
    query = select(Job).where(Job.id == job_id, Job.project_id == project_id).with_for_update()
    row = session.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        raise NotFound("No such batch in this project.", param="batch_id")
    state = JobState(row.state)
    if state.is_terminal:
        raise StateConflict(f"A batch that is {state} cannot be cancelled.", param="batch_id")
    if state is not JobState.CANCELLING:
        session.execute(
            update(Job)
            .where(Job.id == job_id)
            .values(state=JobState.CANCELLING, outcome="cancelled", cancelling_at=func.now())
        )
        drop_open_shards(session, job_id)
        record(session, "job.cancel", str(job_id), project_id=project_id, actor="api")
    ring(session, Bell.CANCEL, JobId(job_id))
    ring(session, Bell.FINALISE, JobId(job_id))
    return get_job(session, project_id, job_id)


def drop_open_shards(session: Session, job_id: UUID) -> None:
    """Take a job's waiting shards off the queue for good."""
    session.execute(
        update(Shard)
        .where(Shard.job_id == job_id, Shard.state == ShardState.OPEN)
        .values(state=ShardState.DROPPED)
    )


def announce_end(session: Session, job: Job, state: JobState) -> None:
    """Write the event of a terminal state in the transaction that makes it true."""
    session.add(
        OutboxEvent(
            project_id=job.project_id, kind=f"batch.{state}", payload={"job_id": str(job.id)}
        )
    )


def _check(new: NewJob) -> None:
    if new.endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    if new.completion_window not in WINDOWS:
        raise InvalidRequest(
            f"completion_window must be one of {', '.join(WINDOWS)}.", param="completion_window"
        )
    if new.on_invalid not in ("fail", "skip"):
        raise InvalidRequest("on_invalid must be 'fail' or 'skip'.", param="on_invalid")
    if not -100 <= new.priority <= 100:
        raise InvalidRequest("priority must be between -100 and 100.", param="priority")
    files.check_expiry_seconds(new.output_expires_seconds, "output_expires_after.seconds")
    _check_metadata(new.metadata)


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > 16:
        raise InvalidRequest("metadata has at most 16 keys.", param="metadata")
    for key, value in metadata.items():
        if len(key) > 64 or len(value) > 512 or "\x00" in key + value:
            raise InvalidRequest(
                f"metadata keys have at most 64 characters, values at most 512: {key[:64]!r}.",
                param="metadata",
            )


def _check_input_file(session: Session, project_id: ProjectId, file_id: FileId) -> None:
    row = session.get(File, file_id)
    if row is None or row.project_id != project_id or row.deleted_at is not None:
        raise InvalidRequest("There is no such file in this project.", param="input_file_id")
    if row.purpose != files.INPUT_PURPOSE:
        raise InvalidRequest(
            f"The file's purpose is {row.purpose!r}; it must be 'batch'.", param="input_file_id"
        )


def _earlier_job(session: Session, caller: Caller, new: NewJob) -> JobId | None:
    """The job that an earlier try of this very request made, if any."""
    mine = select(Job.id, Job.request_sha256).where(
        Job.project_id == caller.project_id, Job.api_key_id == caller.api_key_id
    )
    if new.idempotency_key is not None:
        found = session.execute(mine.where(Job.idempotency_key == new.idempotency_key)).first()
        if found is None:
            return None
        if found.request_sha256 != new.request_sha256:
            raise InvalidRequest(
                "This Idempotency-Key was used with another body; use a new key.",
                code="idempotency_key_reused",
            )
        return JobId(found.id)
    if not new.is_retry:
        return None
    repeat = mine.where(
        Job.request_sha256 == new.request_sha256, Job.created_at > func.now() - _REPEAT_WITHIN
    )
    found = session.execute(repeat.order_by(Job.id.desc()).limit(1)).first()
    return JobId(found.id) if found else None


def _records(session: Session, jobs: Sequence[Job]) -> list[JobRecord]:
    running = [job.id for job in jobs if job.output_lines is None]
    totals = running_totals(session, running)
    models = _model_names(session, jobs)
    faults = _faults(session, [job.id for job in jobs if job.error_count])
    return [
        _record_of(
            job,
            totals.get(job.id) or _frozen_totals(job),
            models.get(job.model_id),
            faults.get(job.id, ()),
        )
        for job in jobs
    ]


def running_totals(session: Session, job_ids: list[UUID]) -> dict[UUID, Totals]:
    """Sums over the shards of jobs that have not ended."""
    if not job_ids:
        return {}
    columns = (
        Shard.succeeded,
        Shard.failed,
        Shard.prompt_tokens,
        Shard.cached_tokens,
        Shard.output_tokens,
        Shard.billed_nano,
        Shard.run_cost_nano,
    )
    sums = [func.coalesce(func.sum(column), 0) for column in columns]
    query = select(Shard.job_id, *sums).where(Shard.job_id.in_(job_ids)).group_by(Shard.job_id)
    return {row[0]: Totals(*(int(value) for value in row[1:])) for row in session.execute(query)}


def _frozen_totals(job: Job) -> Totals:
    return Totals(
        succeeded=job.output_lines or 0,
        failed=job.error_lines or 0,
        prompt_tokens=job.prompt_tokens or 0,
        cached_tokens=job.cached_tokens or 0,
        output_tokens=job.output_tokens or 0,
        billed_nano=job.billed_nano or 0,
        run_cost_nano=job.run_cost_nano or 0,
    )


def _model_names(session: Session, jobs: Sequence[Job]) -> dict[UUID | None, str]:
    ids = {job.model_id for job in jobs if job.model_id is not None}
    if not ids:
        return {}
    rows = session.execute(select(Model.id, Model.name).where(Model.id.in_(ids)))
    return {row.id: row.name for row in rows}


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


def _phase(job: Job) -> tuple[str, str | None]:
    """Where the job really is, in a word and a sentence."""
    state = JobState(job.state)
    match state:
        case JobState.VALIDATING:
            reading = job.ingest_expires_at is not None
            return ("reading", None) if reading else ("queued", "Waiting for a CPU worker.")
        case JobState.FINALIZING | JobState.CANCELLING:
            return state.value, "Waiting for lines in an engine to stop and files to be closed."
        case _:
            return state.value, None


def _record_of(
    job: Job, totals: Totals, model: str | None, faults: tuple[LineFault, ...]
) -> JobRecord:
    phase, reason = _phase(job)
    ended = JobState(job.state).is_terminal
    if job.output_lines is None:
        totals = replace(totals, failed=totals.failed + job.invalid_items)
    return JobRecord(
        id=JobId(job.id),
        project_id=ProjectId(job.project_id),
        endpoint=job.endpoint,
        input_file_id=FileId(job.input_file_id),
        completion_window=job.completion_window,
        model=model,
        state=JobState(job.state),
        metadata=job.job_metadata,
        priority=job.priority,
        total=job.total_items or 0,
        totals=totals,
        fault_count=job.error_count,
        faults=faults,
        output_file_id=FileId(job.output_file_id) if ended and job.output_lines else None,
        error_file_id=FileId(job.error_file_id) if ended and job.error_lines else None,
        phase=phase,
        phase_reason=reason,
        created_at=job.created_at,
        in_progress_at=job.in_progress_at,
        finalizing_at=job.finalizing_at,
        completed_at=job.completed_at,
        failed_at=job.failed_at,
        expires_at=job.expires_at,
        expired_at=job.expired_at,
        cancelling_at=job.cancelling_at,
        cancelled_at=job.cancelled_at,
    )
