"""The invariants that must hold after every fault, read straight from the database."""

import csv
import io
import json
import re
from collections import Counter
from decimal import Decimal
from uuid import UUID

from sqlalchemy import func, inspect, select
from sqlalchemy.orm import Session

from runner.db.models import Job, Result, Shard, Usage, WorkItem
from runner.db.session import SessionFactory
from runner.domain.ids import JOB_PREFIX, ProjectId, encode
from runner.domain.pricing import NANO
from runner.domain.states import PENDING_SHARD_STATES, JobState
from runner.services.contents import ERROR, OUTPUT, read_view
from runner.services.cost_exports import focus_csv, groups_csv
from runner.services.costs import Scope, spent_by
from runner.services.reports import job_report
from web.api.wire import batch_object, decimal_text

Epochs = dict[tuple[UUID, int], int]


def check_job(session: Session, job_id: UUID) -> None:
    """An ended job: every line exactly once over both files, usage equal to the billable lines.

    These are I1 and I3 to I6 of the invariants: counts add up, results are fenced, the ledger is
    the bill, and nothing is left waiting.
    """
    job = session.get_one(Job, job_id)
    assert JobState(job.state).is_terminal
    total = job.total_items
    results = session.execute(
        select(Result.failed, func.count(), func.count(Result.idx.distinct()))
        .where(Result.job_id == job_id)
        .group_by(Result.failed)
    ).all()
    counts = {failed: count for failed, count, _ in results}
    assert all(count == distinct for _, count, distinct in results)
    untold = (total or 0) - sum(counts.values())
    assert untold == 0 or (untold > 0 and job.state in ("cancelled", "expired"))
    assert (job.output_lines, job.error_lines) == (
        counts.get(False, 0),
        counts.get(True, 0) + untold,
    )
    _check_ledger(session, job)
    _check_epochs(session, job_id)
    leased = select(Shard).where(Shard.job_id == job_id, Shard.state.in_(PENDING_SHARD_STATES))
    assert session.scalars(leased).all() == []
    items = select(func.count()).where(WorkItem.job_id == job_id)
    assert session.scalar(items) == (total or 0) - job.invalid_items


def _check_ledger(session: Session, job: Job) -> None:
    """One row per billable result, and the same sums wherever they are told."""
    columns = (Usage.billed_nano, Usage.run_cost_nano, Usage.prompt_tokens, Usage.output_tokens)
    sums = [func.coalesce(func.sum(column), 0) for column in (*columns, Usage.device_us)]
    row = session.execute(select(func.count(), *sums).where(Usage.job_id == job.id)).one()
    lines, billed, run_cost, prompt, output, device_us = map(int, row)
    told = (lines, billed, run_cost, prompt, output)
    names = ("output_lines", "billed_nano", "run_cost_nano", "prompt_tokens", "output_tokens")
    assert told == tuple(getattr(job, name) for name in names)
    report = job_report(session, ProjectId(job.project_id), job.id)
    on_wire = batch_object(report.job)
    assert on_wire["request_counts"]["completed"] == lines
    assert on_wire["usage"]["total_tokens"] == prompt + output
    assert on_wire["cost"]["billed"] == decimal_text(billed)
    assert on_wire["cost"]["run"] == decimal_text(run_cost)
    assert (report.account.lines, report.account.device_us) == (lines, device_us)
    _check_roll_up(session, job, told)
    unbilled = select(Result.idx).where(
        Result.job_id == job.id,
        ~Result.failed,
        ~select(Usage.idx).where(Usage.job_id == job.id, Usage.idx == Result.idx).exists(),
    )
    assert session.scalars(unbilled).all() == []


def _check_roll_up(session: Session, job: Job, told: tuple[int, ...]) -> None:
    """The roll-up and every export say what the ledger says, to the last nano-unit."""
    scope = Scope(job=encode(JOB_PREFIX, job.id))
    for by in ((), ("day", "model"), ("project", "key", "schedule")):
        groups = spent_by(session, scope, by)
        rolled = ("lines", "billed_nano", "run_cost_nano", "prompt_tokens", "output_tokens")
        sums = tuple(sum(getattr(group, name) for group in groups) for name in rolled)
        assert sums == told
    _, billed, run_cost, prompt, output = told
    exports = {
        "billed": groups_csv(spent_by(session, scope, ("day",)), ("day",)),
        "BilledCost": focus_csv(session, scope),
    }
    for name, content in exports.items():
        rows = list(csv.DictReader(io.StringIO(content.decode())))
        assert sum(Decimal(row[name]) for row in rows) * NANO == billed
    assert sum(Decimal(row["x_RunCost"]) for row in rows) * NANO == run_cost
    tokens = (row for row in rows if row["ConsumedUnit"] == "Tokens")
    assert sum(int(row["ConsumedQuantity"]) for row in tokens) == prompt + output


def _check_epochs(session: Session, job_id: UUID) -> None:
    """Each result was written under a lease of a shard that holds the line."""
    shards = session.scalars(select(Shard).where(Shard.job_id == job_id)).all()
    highest = Counter[int]()
    for shard in shards:
        for idx in shard.idx:
            highest[idx] = max(highest[idx], shard.epoch)
    for idx, epoch in session.execute(select(Result.idx, Result.epoch).filter_by(job_id=job_id)):
        assert 0 <= epoch <= highest[idx]


def check_files(sessions: SessionFactory, job_id: UUID) -> dict[str, bytes]:
    """I2: each custom id exactly once over both files. Returns them, as told without ids."""
    found = Counter[str]()
    files = {}
    with sessions() as session:
        job = session.get_one(Job, job_id)
    for view, lines in ((OUTPUT, job.output_lines), (ERROR, job.error_lines)):
        rows = list(read_view(sessions, job_id, view))
        assert len(rows) == lines
        found.update(json.loads(row)["custom_id"] for row in rows)
        files[view] = without_ids(b"".join(rows), job_id)
    assert len(found) == job.total_items
    assert set(found.values()) == {1}
    return files


def without_ids(content: bytes, job_id: UUID) -> bytes:
    """A file without what tells its job apart from another of the same lines."""
    nameless = content.replace(encode("", job_id).encode(), b"JOB")
    return re.sub(rb'"created":\d+', b'"created":0', nameless)


def epochs_of(session: Session, former: Epochs) -> Epochs:
    """I7: the fencing tokens of all shards; none has fallen since ``former``, none has gone."""
    if not inspect(session.connection()).has_table(Shard.__tablename__):
        return {}  # a crash before the first migration was committed
    rows = session.execute(select(Shard.job_id, Shard.shard_no, Shard.epoch))
    epochs = {(row.job_id, row.shard_no): row.epoch for row in rows}
    assert all(epochs.get(shard, -1) >= epoch for shard, epoch in former.items())
    return epochs
