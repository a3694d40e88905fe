"""Jobs: making, showing, listing and cancelling them."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runner.db.models import Job, Shard
from runner.domain.budgets import ON_BUDGET
from runner.domain.defaults import check_defaults
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import FileId, JobId, ProjectId, ScheduleId, new_uuid
from runner.domain.lines import ENDPOINTS
from runner.domain.reuse import Dedupe
from runner.domain.rings import Bell
from runner.domain.run_hours import parse_run_hours
from runner.domain.states import JobState, ShardState
from runner.domain.windows import parse_window
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services import files
from runner.services.audit import record
from runner.services.budget_checks import refuse_what_cannot_fit
from runner.services.estimates import Order
from runner.services.events import announce
from runner.services.job_records import JobRecord, as_created, job_records
from runner.services.keys import Caller
from runner.services.pages import Page, cut
from runner.services.repeats import key_reused

ON_INVALID = ("fail", "skip")
MAX_PRIORITY = 100  # and as much below 0
MAX_P99_MS = 1_000_000_000
MAX_TAGS, TAG_LETTERS = 16, 64
METADATA_KEYS, METADATA_KEY_LETTERS, METADATA_LETTERS = 16, 64, 512
_LATEST_START = timedelta(days=30)
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
    start_after: datetime | None = None
    run_hours: str | None = None
    on_invalid: str = "fail"
    dedupe: str = Dedupe.OFF
    output_expires_seconds: int | None = None
    defaults: bytes | None = None  # a JSON object
    tags: tuple[str, ...] = ()
    p99_bound_ms: int | None = None
    max_cost_nano: int | None = None
    on_budget: str = "refuse"
    idempotency_key: str | None = None
    is_retry: bool = False
    schedule_id: ScheduleId | None = None


def create_job(session: Session, caller: Caller, new: NewJob) -> JobRecord:
    """Accept a job; its file is checked soon after, elsewhere.

    A repeat of the same request (same idempotency key, or a client retry of the same body within
    ten minutes) returns the job that the first one made, as it was then.
    """
    check_terms(session, new)
    earlier = _earlier_job(session, caller, new)
    if earlier is not None:
        return as_created(get_job(session, caller.project_id, earlier))
    _check_input_file(session, caller.project_id, new.input_file_id)
    if new.on_budget == "refuse":
        order = Order(
            caller.project_id,
            new.input_file_id,
            new.endpoint,
            new.defaults,
            dedupe=Dedupe(new.dedupe),
        )
        refuse_what_cannot_fit(session, caller, order, new.max_cost_nano)
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
        start_after=new.start_after,
        run_hours=None if new.run_hours is None else str(parse_run_hours(new.run_hours)),
        on_invalid=new.on_invalid,
        dedupe=new.dedupe,
        output_expires_seconds=new.output_expires_seconds,
        defaults=new.defaults,
        tags=list(new.tags),
        p99_bound_ms=new.p99_bound_ms,
        max_cost_nano=new.max_cost_nano,
        on_budget=new.on_budget,
        idempotency_key=new.idempotency_key,
        request_sha256=new.request_sha256,
        schedule_id=new.schedule_id,
        state=JobState.VALIDATING,
        expires_at=deadline(new.completion_window, new.start_after),
    )
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:  # the same idempotency key, a moment earlier
        earlier = _earlier_job(session, caller, new)
        if earlier is None:
            raise
        return as_created(get_job(session, caller.project_id, earlier))
    record(session, "job.create", str(job_id), project_id=caller.project_id, actor="api")
    ring(session, Bell.INGEST, job_id)
    hit(FailPoint.CREATE_BEFORE_COMMIT)
    return get_job(session, caller.project_id, job_id)


def get_job(session: Session, project_id: ProjectId, job_id: UUID) -> JobRecord:
    """A job of the project."""
    row = session.get(Job, job_id, populate_existing=True)
    if row is None or row.project_id != project_id:
        raise NotFound("No such batch in this project.", param="batch_id")
    return job_records(session, [row])[0]


def list_jobs(
    session: Session, project_id: ProjectId, after: JobId | None, limit: int
) -> Page[JobRecord]:
    """A page of the project's jobs, newest first."""
    query = select(Job).where(Job.project_id == project_id)
    if after is not None:
        query = query.where(Job.id < get_job(session, project_id, after).id)
    rows = session.scalars(query.order_by(Job.id.desc()).limit(limit + 1)).all()
    page = cut(rows, limit)
    return Page(job_records(session, page.items), page.has_more)


def cancel_job(session: Session, project_id: ProjectId, job_id: UUID) -> JobRecord:
    """Stop a job: open work is dropped now, work in an engine is aborted within a second.

    Finished lines stay and are billed. Repeating it while it is under way is harmless.
    """
    query = select(Job).where(Job.id == job_id, Job.project_id == project_id).with_for_update()
    row = session.scalars(query).one_or_none()
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
    hit(FailPoint.CANCEL_BEFORE_COMMIT)
    return get_job(session, project_id, job_id)


def postpone_expiry(session: Session, job_id: UUID) -> None:
    """Give a job that has not ended its whole window again, from now: for a caller who waits."""
    job = session.get_one(Job, job_id)
    if not JobState(job.state).is_terminal:
        job.expires_at = deadline(job.completion_window, job.start_after)


def deadline(completion_window: str, start_after: datetime | None) -> ColumnElement[datetime]:
    """The end of a window that begins now, or when the job may start if that is later."""
    begins = func.now() if start_after is None else func.greatest(func.now(), start_after)
    return begins + parse_window(completion_window)


def check_priority(priority: int) -> None:
    """Refuse a priority that is out of range."""
    if not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidRequest(
            f"priority must be between -{MAX_PRIORITY} and {MAX_PRIORITY}.", param="priority"
        )


def check_start(session: Session, start_after: datetime | None) -> None:
    """Refuse a start that nobody would wait for; one that is past means now."""
    latest = session.scalar(select(func.now() + _LATEST_START))
    if start_after is not None and latest is not None and start_after > latest:
        raise InvalidRequest(
            f"start_after is at most {_LATEST_START.days} days ahead.", param="start_after"
        )


def drop_open_shards(session: Session, job_id: UUID) -> None:
    """Take a job's waiting shards off the queue for good."""
    session.execute(
        update(Shard)
        .where(Shard.job_id == job_id, Shard.state.in_((ShardState.OPEN, ShardState.FOLLOWING)))
        .values(state=ShardState.DROPPED)
    )


def announce_end(session: Session, job: Job, state: JobState) -> None:
    """Write the event of a terminal state in the transaction that makes it true."""
    announce(session, job.project_id, f"batch.{state}", {"job_id": str(job.id)})


def check_terms(session: Session, new: NewJob) -> None:
    """Check all of a new job but its file."""
    if new.endpoint not in ENDPOINTS:
        raise InvalidRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    parse_window(new.completion_window)
    if new.run_hours is not None:
        parse_run_hours(new.run_hours)
    check_start(session, new.start_after)
    if new.on_invalid not in ON_INVALID:
        raise InvalidRequest("on_invalid must be 'fail' or 'skip'.", param="on_invalid")
    if new.dedupe not in set(Dedupe):
        raise InvalidRequest(f"dedupe must be one of {', '.join(Dedupe)}.", param="dedupe")
    check_priority(new.priority)
    if new.on_budget not in ON_BUDGET:
        raise InvalidRequest("on_budget must be 'refuse' or 'pause'.", param="on_budget")
    files.check_expiry_seconds(new.output_expires_seconds, "output_expires_after.seconds")
    check_defaults(new.defaults)
    _check_metadata(new.metadata)
    _check_tags(new.tags)
    if new.p99_bound_ms is not None and not 1 <= new.p99_bound_ms <= MAX_P99_MS:
        raise InvalidRequest(f"p99_ms must be between 1 and {MAX_P99_MS}.", param="p99_ms")


def _check_tags(tags: tuple[str, ...]) -> None:
    if len(tags) > MAX_TAGS or len(set(tags)) < len(tags):
        raise InvalidRequest(f"tags are at most {MAX_TAGS}, each once.", param="tags")
    for tag in tags:
        if not 1 <= len(tag) <= TAG_LETTERS or not tag.isprintable():
            raise InvalidRequest(
                f"A tag has 1 to {TAG_LETTERS} printable characters: {tag[:TAG_LETTERS]!r}.",
                param="tags",
            )


def _check_metadata(metadata: dict[str, str] | None) -> None:
    if metadata is None:
        return
    if len(metadata) > METADATA_KEYS:
        raise InvalidRequest(f"metadata has at most {METADATA_KEYS} keys.", param="metadata")
    for key, value in metadata.items():
        if "\0" in key + value:
            raise InvalidRequest("metadata must not hold a NUL character.", param="metadata")
        if len(key) > METADATA_KEY_LETTERS or len(value) > METADATA_LETTERS:
            raise InvalidRequest(
                f"metadata keys have at most {METADATA_KEY_LETTERS} characters, values at most "
                f"{METADATA_LETTERS}: {key[:METADATA_KEY_LETTERS]!r}.",
                param="metadata",
            )


def _check_input_file(session: Session, project_id: ProjectId, file_id: FileId) -> None:
    try:
        row = files.visible_file(session, project_id, file_id)
    except NotFound:
        raise InvalidRequest(
            "There is no such file in this project; it may have expired or been deleted.",
            param="input_file_id",
        ) from None
    if row.purpose != files.INPUT_PURPOSE:
        raise InvalidRequest(
            f"The file's purpose is {row.purpose!r}; it must be 'batch'.", param="input_file_id"
        )


def _earlier_job(session: Session, caller: Caller, new: NewJob) -> JobId | None:
    """The job that an earlier try of this very request made, if any."""
    ours = select(Job.id, Job.request_sha256).where(Job.project_id == caller.project_id)
    if new.idempotency_key is not None:
        found = session.execute(ours.where(Job.idempotency_key == new.idempotency_key)).first()
        if found is None:
            return None
        if found.request_sha256 != new.request_sha256:
            raise key_reused("body")
        return JobId(found.id)
    if not new.is_retry:
        return None
    repeat = ours.where(
        Job.api_key_id == caller.api_key_id,
        Job.request_sha256 == new.request_sha256,
        Job.created_at > func.now() - _REPEAT_WITHIN,
    )
    found = session.execute(repeat.order_by(Job.id.desc()).limit(1)).first()
    return JobId(found.id) if found else None
