"""Counting a job's prompts with its models' own tokenizers, shard by shard, by several workers."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.models import Job, JobModel, Model
from runner.db.session import SessionFactory
from runner.domain.counts import Count, LineCounter, LineKind, OpenCounter
from runner.domain.defaults import Defaults
from runner.domain.rings import Bell
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.items import read_all_lines
from runner.services.job_estimates import finish_count
from runner.services.shard_counts import (
    CountLease,
    claim_counts,
    others_count,
    wants_counting,
    write_counts,
)

_SHARDS_AT_ONCE = 8
_TURN_SECONDS = 3.0
"""How long one ring keeps a CPU worker: other jobs' files want it, too."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Whose lines are counted, and how; a counter for each of their models."""

    job_id: UUID
    file_id: UUID
    kind: LineKind
    counters: Mapping[UUID, LineCounter]


def run_count(
    sessions: SessionFactory, settings: Settings, open_counter: OpenCounter, job_id: UUID
) -> int:
    """Count some of a job's shards; returns how many.

    A worker that finds itself alone calls another, once; at the end of its turn one is called
    unless another is at work. So a job has about two of them however many rings there were.
    """
    source = _open(sessions, open_counter, job_id)
    if source is None:
        return 0
    written, has_called = 0, False
    end = time.monotonic() + _TURN_SECONDS
    while time.monotonic() < end:
        with sessions.begin() as session:
            has_company = others_count(session, job_id)
            leases = claim_counts(session, job_id, _SHARDS_AT_ONCE, settings.lease_seconds)
            if leases and not has_company and not has_called:
                has_called = _call(session, job_id)
        if not leases:
            break
        hit(FailPoint.COUNT_AFTER_CLAIM)
        counts = [(lease, _count(sessions, source, lease)) for lease in leases]
        with sessions.begin() as session:
            written += write_counts(session, counts)
            hit(FailPoint.COUNT_BEFORE_COMMIT)
    with sessions.begin() as session:
        is_done = finish_count(session, job_id)
        if not is_done and not has_called and not others_count(session, job_id):
            _call(session, job_id)
    return written


def _call(session: Session, job_id: UUID) -> bool:
    """Have another CPU worker look at a job of which something is left to count.

    Of a job that has ended nothing is claimed: whoever was called would only call the next.
    """
    if not wants_counting(session, job_id):
        return False
    ring(session, Bell.COUNT, job_id)
    return True


def _open(sessions: SessionFactory, open_counter: OpenCounter, job_id: UUID) -> _Source | None:
    """The lines of a job that has some; the counters of its models are loaded here."""
    with sessions() as session:
        job = session.get(Job, job_id)
        query = select(Model).join(JobModel, JobModel.model_id == Model.id)
        models = session.scalars(query.where(JobModel.job_id == job_id)).all()
    if job is None or not models:
        return None
    kind = LineKind(job.endpoint, Defaults(job.defaults))
    counters = {model.id: open_counter(model.path, model.context_length) for model in models}
    return _Source(job.id, job.input_file_id, kind, counters)


def _count(sessions: SessionFactory, source: _Source, lease: CountLease) -> Count:
    wanted = lease.idx if lease.before is None else (lease.before, *lease.idx)
    with sessions() as session:
        lines = read_all_lines(session, source.job_id, source.file_id, wanted)
    before = lines.pop(0) if lines and lines[0].idx == lease.before else None
    return source.counters[lease.model_id].count(source.kind, lines, before)
