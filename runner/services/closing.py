"""The end of a job: its counts proven, its two views measured, its totals frozen."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from runner.db.clock import seconds_from_now
from runner.db.models import File, Job, Shard, Usage
from runner.domain.reuse import Dedupe
from runner.domain.rings import Bell
from runner.domain.states import (
    COMPUTED_SHARD_STATES,
    PENDING_SHARD_STATES,
    JobState,
    ShardState,
)
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.alerts import judge_end
from runner.services.contents import ERROR, OUTPUT, ViewSize, index_view
from runner.services.files import OUTPUT_PURPOSE
from runner.services.job_accounts import freeze_account
from runner.services.job_estimates import settle_estimates
from runner.services.job_totals import Totals, running_totals
from runner.services.jobs import announce_end, drop_open_shards
from runner.services.rollup import roll_up

logger = logging.getLogger(__name__)


class CountsDiffer(Exception):
    """A job's results do not add up to its lines; it is not closed. This would be our own bug."""


def close_if_drained(session: Session, job_id: UUID) -> None:
    """When no shard of a job is waiting or leased any more, ask for its files to be closed, or
    first for its lines that follow others to take their answers.

    Call it in a transaction after the one that ended a shard: of two workers that end the last
    two shards at once, the one that commits later then sees both.
    """
    pending = _has_shards(job_id, PENDING_SHARD_STATES)
    session.execute(
        update(Job)
        .where(Job.id == job_id, Job.state == JobState.IN_PROGRESS, ~pending)
        .values(state=JobState.FINALIZING, outcome="completed", finalizing_at=func.now())
    )
    hit(FailPoint.DRAINED_BEFORE_COMMIT)
    ended = Job.state.in_((JobState.FINALIZING, JobState.CANCELLING))
    runs = Job.state == JobState.IN_PROGRESS
    leased, computed, following = (
        _has_shards(job_id, states)
        for states in ((ShardState.LEASED,), COMPUTED_SHARD_STATES, (ShardState.FOLLOWING,))
    )
    follows = runs & (Job.dedupe != Dedupe.OFF) & following & ~computed
    query = select(ended & ~leased, follows).where(Job.id == job_id)
    for is_drained, only_follows in session.execute(query):
        if is_drained:
            ring(session, Bell.FINALISE, job_id)
        elif only_follows:
            ring(session, Bell.COPY, job_id)


def close_job(session: Session, job_id: UUID) -> bool:
    """Bring a drained job to its terminal state; harmless when repeated or raced.

    A closer that finds another at work leaves it alone, so that rings do not queue up behind a
    job of a million lines.

    Raises:
        CountsDiffer: the results do not add up to the lines; nothing is changed.
    """
    query = select(Job).where(Job.id == job_id).with_for_update(skip_locked=True)
    job = session.scalars(query).one_or_none()
    if job is None or job.state not in (JobState.FINALIZING, JobState.CANCELLING):
        return False
    # A lease that was freed in the same moment as the job was stopped has come back open.
    drop_open_shards(session, job_id)
    if session.scalar(select(_has_shards(job_id, (ShardState.LEASED,)))):
        return False
    hit(FailPoint.CLOSE_BEFORE_VIEWS)
    state = JobState(job.outcome or JobState.COMPLETED)
    output = _close_view(session, job, OUTPUT, job.output_file_id, state)
    errors = _close_view(session, job, ERROR, job.error_file_id, state)
    hit(FailPoint.CLOSE_BEFORE_TOTALS)
    total = job.total_items or 0
    if output.lines + errors.lines != total:
        raise CountsDiffer(
            f"job {job_id}: {output.lines} output and {errors.lines} error lines of {total}"
        )
    totals = asdict(running_totals(session, [job_id]).get(job_id, Totals()))
    kept = ("prompt_tokens", "cached_tokens", "output_tokens", "billed_nano", "run_cost_nano")
    session.execute(
        update(Job)
        .where(Job.id == job_id)
        .values(
            {
                "state": state,
                f"{state}_at": func.now(),
                "output_lines": output.lines,
                "error_lines": errors.lines,
                "reused_lines": _reused_lines(job),
                **{name: totals[name] for name in kept},
            }
        )
    )
    freeze_account(session, job_id)
    roll_up(session, job_id)
    settle_estimates(session, job)
    judge_end(session, job)
    announce_end(session, job, state)
    hit(FailPoint.CLOSE_BEFORE_COMMIT)
    return True


def _reused_lines(job: Job) -> ColumnElement[int] | int:
    """By the ledger: a shard may have followed only at first."""
    if job.dedupe == Dedupe.OFF:
        return 0
    reused = select(func.count()).where(Usage.job_id == job.id, Usage.reused)
    return reused.scalar_subquery()


def _has_shards(job_id: UUID, states: Sequence[ShardState]) -> ColumnElement[bool]:
    return select(Shard.shard_no).where(Shard.job_id == job_id, Shard.state.in_(states)).exists()


def _close_view(session: Session, job: Job, view: str, file_id: UUID, state: JobState) -> ViewSize:
    """Make the file of a view that has lines, with its exact size and its byte index."""
    file = File(
        id=file_id,
        project_id=job.project_id,
        purpose=OUTPUT_PURPOSE,
        filename=f"{job.id}_{view}.jsonl",
        size=0,
        job_id=job.id,
        view=view,
    )
    if job.output_expires_seconds is not None:
        file.expires_at = seconds_from_now(job.output_expires_seconds)
    session.add(file)
    session.flush()
    size = index_view(session, job.id, view, file_id, state)
    if size.lines == 0:
        session.delete(file)
    else:
        file.size = size.bytes
    session.flush()
    return size
