"""The roll-up: what the ledger says of each job's day, small enough to keep and to draw.

It is made of the ledger anew each time, by job, never added to: so it may be repeated, may be late,
and counts late rows. What stands for rows of the ledger that retention has dropped stays.
"""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    Date,
    Double,
    Integer,
    SmallInteger,
    case,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import Job, LatencyDay, Shard, Usage, UsageDay
from runner.domain.ids import JobId
from runner.domain.latency import PER_OCTAVE, Measure
from runner.domain.states import LIVE_JOB_STATES, TERMINAL_JOB_STATES, JobState
from runner.services.job_accounts import LATENCIES, SUMS

_LOCK = 7_461_034  # any constant: two processes that roll up one job take turns
_EVERY_SECONDS = 60
_LINES_PER_SECOND = 5_000  # a running job is rolled up ever more rarely, to cost little
_DAYS_CHECKED = 35
_SUM_KEY = ("job_id", "day", "model_id", "price_id")
_LATENCY_KEY = ("job_id", "day", "model_id", "measure", "bucket")

_DAY = cast(func.timezone("UTC", Usage.created_at), Date)


@dataclass(frozen=True, slots=True)
class Difference:
    """An ended job whose roll-up is not what the job says (lines; money in nano-units)."""

    job_id: JobId
    lines: int
    rolled_lines: int
    billed_nano: int
    rolled_billed_nano: int
    run_cost_nano: int
    rolled_run_cost_nano: int


def roll_up(session: Session, job_id: UUID) -> None:
    """Bring the roll-up of one job in line with its ledger."""
    session.execute(select(func.pg_advisory_xact_lock(_LOCK, func.hashtext(str(job_id)))))
    _roll_up_sums(session, job_id)
    _roll_up_latencies(session, job_id)


def rebuild(session: Session, job_id: UUID) -> bool:
    """Make a job's roll-up from nothing; one whose ledger is gone is left as it is (False)."""
    if session.scalar(select(Usage.idx).where(Usage.job_id == job_id).limit(1)) is None:
        return False
    session.execute(delete(UsageDay).where(UsageDay.job_id == job_id))
    session.execute(delete(LatencyDay).where(LatencyDay.job_id == job_id))
    roll_up(session, job_id)
    return True


def roll_up_live(session: Session) -> int:
    """Roll up the running jobs that have finished lines since, each once a minute or less often.

    Returns how many. A job that has ended was rolled up as it was closed.
    """
    due = _due_jobs(session)
    for job_id in due:
        roll_up(session, job_id)
    return len(due)


def differences(session: Session, ids: tuple[UUID, UUID] | None = None) -> list[Difference]:
    """The ended jobs whose roll-up is not what they say, the newest first.

    Of the last weeks, or of a range of ids (the second of them not in it).
    """
    is_meant = Job.created_at > func.now() - func.make_interval(0, 0, 0, _DAYS_CHECKED)
    if ids is not None:
        is_meant = (Job.id >= ids[0]) & (Job.id < ids[1])
    rolled = (
        select(
            UsageDay.job_id,
            func.sum(UsageDay.lines).label("lines"),
            func.sum(UsageDay.billed_nano).label("billed"),
            func.sum(UsageDay.run_cost_nano).label("run_cost"),
        )
        .group_by(UsageDay.job_id)
        .subquery()
    )
    lines, billed, run_cost = (
        func.coalesce(column, 0) for column in (rolled.c.lines, rolled.c.billed, rolled.c.run_cost)
    )
    said = (
        (func.coalesce(Job.output_lines, 0), lines),
        (func.coalesce(Job.billed_nano, 0), billed),
        (func.coalesce(Job.run_cost_nano, 0), run_cost),
    )
    query = (
        select(Job.id, *(column for pair in said for column in pair))
        .outerjoin(rolled, rolled.c.job_id == Job.id)
        .where(
            Job.state.in_(TERMINAL_JOB_STATES),
            is_meant,
            or_(*(job != roll for job, roll in said)),
        )
        .order_by(Job.id.desc())
    )
    return [Difference(JobId(row[0]), *map(int, row[1:])) for row in session.execute(query)]


def _roll_up_sums(session: Session, job_id: UUID) -> None:
    keys = (Usage.job_id, _DAY, Usage.model_id, Usage.price_id)
    owners = (Usage.project_id, Usage.api_key_id)
    rows = (
        select(*keys, *owners, *SUMS.values(), func.now())
        .where(Usage.job_id == job_id)
        .group_by(*keys, *owners)
    )
    changing = (*SUMS, "rolled_at")
    statement = insert(UsageDay).from_select(
        (*_SUM_KEY, "project_id", "api_key_id", *changing), rows
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=_SUM_KEY,
            set_={name: statement.excluded[name] for name in changing},
        )
    )


def _roll_up_latencies(session: Session, job_id: UUID) -> None:
    """One statement reads each row of the ledger once and counts it in four histograms."""
    times = select(
        Usage.job_id,
        _DAY.label("day"),
        Usage.model_id,
        *(_bucket(column).label(measure.name) for measure, column in LATENCIES.items()),
    )
    line = times.where(Usage.job_id == job_id).cte("line")
    parts = [
        select(
            line.c.job_id,
            line.c.day,
            line.c.model_id,
            cast(literal(int(measure)), SmallInteger).label("measure"),
            line.c[measure.name].label("bucket"),
            cast(func.count(), Integer).label("lines"),
        )
        .where(line.c[measure.name].is_not(None))
        .group_by(line.c.job_id, line.c.day, line.c.model_id, line.c[measure.name])
        for measure in Measure
    ]
    statement = insert(LatencyDay).from_select((*_LATENCY_KEY, "lines"), union_all(*parts))
    session.execute(
        statement.on_conflict_do_update(
            index_elements=_LATENCY_KEY, set_={"lines": statement.excluded.lines}
        )
    )


def _bucket(micros: ColumnElement[int]) -> ColumnElement[int]:
    """The bucket of ``domain.latency``; null where there is nothing to measure."""
    octaves = func.ln(cast(func.greatest(micros, 1), Double)) / func.ln(cast(2, Double))
    # GREATEST passes nulls over.
    return case((micros.is_not(None), cast(func.floor(octaves * PER_OCTAVE), SmallInteger)))


def _due_jobs(session: Session) -> list[UUID]:
    rolled = (
        select(
            UsageDay.job_id,
            func.sum(UsageDay.lines).label("lines"),
            func.max(UsageDay.rolled_at).label("at"),
        )
        .join(Job, Job.id == UsageDay.job_id)
        .where(Job.state.in_(LIVE_JOB_STATES))
        .group_by(UsageDay.job_id)
        .subquery()
    )
    done = (
        select(func.coalesce(func.sum(Shard.succeeded), 0))
        .where(Shard.job_id == Job.id)
        .scalar_subquery()
    )
    lines = func.coalesce(rolled.c.lines, 0)
    pause = func.greatest(_EVERY_SECONDS, lines / _LINES_PER_SECOND)
    query = (
        select(Job.id)
        .outerjoin(rolled, rolled.c.job_id == Job.id)
        .where(
            Job.state.in_(LIVE_JOB_STATES),
            Job.state != JobState.VALIDATING,
            func.coalesce(rolled.c.at, Job.in_progress_at)
            < func.now() - func.make_interval(0, 0, 0, 0, 0, 0, pause),
            done != lines,
        )
        .order_by(Job.id)
    )
    return list(session.scalars(query))
