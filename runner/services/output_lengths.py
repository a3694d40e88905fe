"""How long outputs were: noted of each job at its end, and read for the jobs to come."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Double, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from runner.db.models import Job, JobEstimate, Shard, ShardCount
from runner.domain.estimate import FEWEST_LINES, PPM, Basis, Lengths
from runner.domain.lengths import JobLengths, pool
from runner.domain.states import ShardState

_JOBS_READ = 20  # the newest that ended
_SPREAD = (0.1, 0.9)


def note_lengths(session: Session, job_id: UUID, model_id: UUID) -> dict[str, Any] | None:
    """What a job shows of a model's outputs, by its counted shards; None if no line succeeded."""
    shards = (Shard.job_id == job_id, Shard.model_id == model_id)
    kinds = {
        "bounded": (ShardCount.unbounded_lines == 0, ShardCount.bounded_output, PPM),
        "unbounded": (ShardCount.bounded_lines == 0, ShardCount.lines, 1000),
    }
    found = {
        kind: _spread(session, (*shards, is_of_kind), base, unit)
        for kind, (is_of_kind, base, unit) in kinds.items()
    }
    return found if any(found.values()) else None


def _spread(
    session: Session,
    conditions: Sequence[ColumnElement[bool]],
    base: InstrumentedAttribute[int],
    unit: int,
) -> dict[str, int] | None:
    """Output of shards as so many ``unit`` parts of a base: its mean, and its spread over them.

    Of a shard whose lines failed in part, the base is taken in proportion.
    """
    wanted = cast(base, Double) * Shard.succeeded / ShardCount.lines
    ratio = cast(Shard.output_tokens, Double) / wanted
    low, high = (func.percentile_cont(q).within_group(ratio) for q in _SPREAD)
    mean = func.sum(cast(Shard.output_tokens, Double)) / func.sum(wanted)
    row = session.execute(
        select(func.sum(Shard.succeeded), low, mean, high)
        .join(
            ShardCount,
            (ShardCount.job_id == Shard.job_id) & (ShardCount.shard_no == Shard.shard_no),
        )
        .where(
            Shard.state == ShardState.DONE,
            Shard.succeeded > 0,
            ShardCount.counted_at.is_not(None),
            ShardCount.lines > 0,
            base > 0,
            *conditions,
        )
    ).one()
    if row[0] is None:
        return None
    lines, *figures = row
    names = ("low", "mean", "high")
    told = {name: round(unit * value) for name, value in zip(names, figures, strict=True)}
    return {"lines": int(lines), **told}


def read_lengths(
    session: Session, project_id: UUID, model_id: UUID, schedule_id: UUID | None
) -> Lengths | None:
    """What earlier jobs of the schedule tell, else those of the project; None without enough.

    Only jobs of the same project and model: others' outputs are nobody's business.
    """
    ours = (Job.project_id == project_id, JobEstimate.model_id == model_id)
    if schedule_id is not None:
        found = _pooled(session, (*ours, Job.schedule_id == schedule_id), Basis.SCHEDULE)
        if found is not None:
            return found
    return _pooled(session, ours, Basis.MODEL)


def _pooled(
    session: Session, conditions: Sequence[ColumnElement[bool]], basis: Basis
) -> Lengths | None:
    rows = session.scalars(
        select(JobEstimate.lengths)
        .join(Job, Job.id == JobEstimate.job_id)
        .where(JobEstimate.lengths.is_not(None), *conditions)
        .order_by(Job.id.desc())
        .limit(_JOBS_READ)
    ).all()
    ratio_lines, ratio = pool([JobLengths(**row["bounded"]) for row in rows if row["bounded"]])
    each_lines, each = pool([JobLengths(**row["unbounded"]) for row in rows if row["unbounded"]])
    lines = (ratio_lines if ratio else 0) + (each_lines if each else 0)
    return Lengths(lines, ratio, each, basis) if lines >= FEWEST_LINES else None
