"""Retries: a child job with the lines of its parent that have no answer, and both read as one.

A child has its parent's line numbers and reads the same file; nothing is copied but the places of
its lines. Its usage is its own: a line is billed to the job that answered it.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import merge
from itertools import groupby
from uuid import UUID

from sqlalchemy import ColumnElement, exists, func, insert, literal, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Result, Shard, WorkItem
from runner.db.session import SessionFactory
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JOB_PREFIX, JobId, ModelId, ProjectId, encode, new_uuid
from runner.domain.intake import PlannedShard
from runner.domain.rings import Bell
from runner.domain.states import LIVE_JOB_STATES, JobState
from runner.doorbell import ring
from runner.services import files
from runner.services.audit import record
from runner.services.contents import ERROR, OUTPUT, NumberedLine, read_numbered
from runner.services.copy_plans import plan_copies_of_retry
from runner.services.file_life import removed
from runner.services.job_estimates import begin_retry_estimates
from runner.services.job_models import sole_model, write_shards
from runner.services.job_records import JobRecord
from runner.services.jobs import deadline, get_job
from runner.services.keys import Caller

RankedLine = tuple[int, bool, int, bytes]  # its number, whether it is an answer, its job's place


class RetryLines(StrEnum):
    """Which lines: those that failed, those that were never reached, or both."""

    ALL = "all"
    FAILED = "failed"
    UNFINISHED = "unfinished"


def retry_job(
    session: Session, caller: Caller, job_id: UUID, lines: RetryLines, shard_lines: int
) -> JobRecord:
    """Make a job of the lines of one that has ended, as far as they have no answer.

    Lines that were refused when the file was read stay out: they would be again.

    Raises:
        StateConflict: the job has not ended, has no such line or none any more, or is being
            retried.
        InvalidRequest: its file is gone.
    """
    query = select(Job).where(Job.id == job_id, Job.project_id == caller.project_id)
    parent = session.scalars(query.with_for_update()).one_or_none()
    if parent is None:
        raise NotFound("No such batch in this project.", param="batch_id")
    _check_retriable(session, parent)
    child = _child_of(session, parent, caller)
    session.add(child)
    session.flush()
    count = _take_lines(session, parent, child, lines, shard_lines)
    if count == 0:
        words = "" if lines is RetryLines.ALL else f" {lines}"
        raise StateConflict(f"The batch has no{words} line to retry.", param="batch_id")
    child.total_items = count
    session.flush()
    told = {"parent": str(parent.id), "lines": lines.value}
    record(session, "job.retry", str(child.id), project_id=caller.project_id, detail=told)
    ring(session, Bell.WAKE)
    return get_job(session, caller.project_id, child.id)


def family_of(session: Session, job_id: UUID) -> list[JobId]:
    """A job with all it retries and all that retry it, in order of their creation."""
    root = job_id
    while parent := session.scalar(select(Job.parent_id).where(Job.id == root)):
        root = parent
    found, generation = [root], [root]
    while generation:
        query = select(Job.id).where(Job.parent_id.in_(generation))
        generation = list(session.scalars(query))
        found += generation
    return [JobId(each) for each in sorted(found)]  # ids grow with time


def read_merged(sessions: SessionFactory, job_id: UUID, view: str) -> Iterator[bytes]:
    """The output or errors of a job and its retries as one, in line order, so far.

    A line has the latest answer that any of them got; without one, its latest error.

    Raises:
        Gone: lines that are needed for that are there no more.
    """
    with sessions() as session:
        family = family_of(session, job_id)
    kinds = (OUTPUT,) if view == OUTPUT else (ERROR, OUTPUT)
    return _best_of(
        [
            _ranked(read_numbered(sessions, member, kind), kind, rank)
            for rank, member in enumerate(family)
            for kind in kinds
        ],
        view,
    )


def _best_of(streams: list[Iterator[RankedLine]], view: str) -> Iterator[bytes]:
    for _, same in groupby(merge(*streams, key=lambda each: each[0]), key=lambda each: each[0]):
        _, succeeded, _, line = max(same, key=lambda each: each[1:3])
        if succeeded == (view == OUTPUT):
            yield line


def _ranked(lines: Iterable[NumberedLine], view: str, rank: int) -> Iterator[RankedLine]:
    for idx, line in lines:
        yield idx, view == OUTPUT, rank, line


def _check_retriable(session: Session, parent: Job) -> None:
    state = JobState(parent.state)
    if not state.is_terminal:
        raise StateConflict(f"A batch that is {state} cannot be retried yet.", param="batch_id")
    if parent.lines_removed_at is not None:
        raise StateConflict(
            f"{removed(parent.lines_removed_at)} The batch cannot be retried.", param="batch_id"
        )
    running = session.scalar(
        select(Job.id).where(Job.parent_id == parent.id, Job.state.in_(LIVE_JOB_STATES)).limit(1)
    )
    if running is not None:
        name = encode(JOB_PREFIX, running)
        raise StateConflict(f"The batch is being retried already, by {name}.", param="batch_id")
    try:
        files.visible_file(session, ProjectId(parent.project_id), parent.input_file_id)
    except NotFound:
        raise InvalidRequest(
            "The input file of the batch was deleted or has expired.", param="batch_id"
        ) from None


def _child_of(session: Session, parent: Job, caller: Caller) -> Job:
    return Job(
        id=new_uuid(),
        project_id=parent.project_id,
        api_key_id=caller.api_key_id,
        parent_id=parent.id,
        input_file_id=parent.input_file_id,
        endpoint=parent.endpoint,
        completion_window=parent.completion_window,
        job_metadata=parent.job_metadata,
        priority=parent.priority,
        run_hours=parent.run_hours,
        on_invalid=parent.on_invalid,
        output_expires_seconds=parent.output_expires_seconds,
        defaults=parent.defaults,
        tags=list(parent.tags),
        p99_bound_ms=parent.p99_bound_ms,
        # What the parent's limit has left: a retry must not be a way around it.
        max_cost_nano=_left_of_limit(parent),
        on_budget=parent.on_budget,
        dedupe=parent.dedupe,
        # Not the parent's: a client that repeats that create must not get this job for it.
        request_sha256=hashlib.sha256(b"retry\n" + parent.id.bytes).digest(),
        state=JobState.IN_PROGRESS,
        in_progress_at=func.now(),
        total_items=0,
        expires_at=deadline(parent.completion_window, None),
    )


def _left_of_limit(parent: Job) -> int | None:
    if parent.max_cost_nano is None:
        return None
    return max(0, parent.max_cost_nano - (parent.billed_nano or 0))


def _take_lines(
    session: Session, parent: Job, child: Job, lines: RetryLines, shard_lines: int
) -> int:
    """Give the child its items and shards, in the prefix order of the parent's; counts them."""
    columns = (WorkItem.idx, WorkItem.custom_id, WorkItem.byte_offset, WorkItem.byte_length)
    items = select(literal(child.id), *columns)
    items = items.where(WorkItem.job_id == parent.id, _wanted(lines))
    names = ("job_id", "idx", "custom_id", "byte_offset", "byte_length")
    session.execute(insert(WorkItem).from_select(names, items))
    ordered = _in_prefix_order(session, parent.id, child.id)
    copies = plan_copies_of_retry(session, parent, child)
    shards = list(_planned(ordered, copies, shard_lines))
    now = session.execute(select(func.now())).scalar_one()
    models = write_shards(session, child.id, now, shards)
    child.model_id = sole_model(models)
    begin_retry_estimates(session, child, models)
    if copies:
        ring(session, Bell.COPY, child.id)
    return sum(len(shard.idx) for shard in shards)


def _planned(
    lines: Mapping[ModelId, Sequence[int]], copies: Collection[int], shard_lines: int
) -> Iterator[PlannedShard]:
    shard_no = 0
    for follows in (False, True):
        for model_id, ordered in lines.items():
            ours = [idx for idx in ordered if (idx in copies) == follows]
            for start in range(0, len(ours), shard_lines):
                yield PlannedShard(shard_no, model_id, ours[start : start + shard_lines], follows)
                shard_no += 1


def _in_prefix_order(session: Session, parent_id: UUID, child_id: UUID) -> dict[ModelId, list[int]]:
    """The child's lines by model, as neighbours in the parent's shards; the halves of a split one
    have nothing that it does not have."""
    query = select(Shard.model_id, Shard.idx).where(Shard.job_id == parent_id)
    wanted = set(session.scalars(select(WorkItem.idx).where(WorkItem.job_id == child_id)))
    found: dict[ModelId, list[int]] = {}
    for model_id, idx in session.execute(query.order_by(Shard.shard_no)):
        ours = [each for each in idx if each in wanted]
        if ours:
            found.setdefault(ModelId(model_id), []).extend(ours)
            wanted.difference_update(ours)
    return found


def _wanted(lines: RetryLines) -> ColumnElement[bool]:
    """Whether an item of the parent goes to the child."""
    result = exists().where(Result.job_id == WorkItem.job_id, Result.idx == WorkItem.idx)
    match lines:
        case RetryLines.FAILED:
            return result.where(Result.failed)
        case RetryLines.UNFINISHED:
            return ~result
        case RetryLines.ALL:
            return ~result.where(Result.failed.is_(False))
