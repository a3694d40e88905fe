"""Retention: the lines of old jobs leave by whole partitions, a week at a time.

A week goes when its last job ended so many days ago and nothing in it is still to be kept. Jobs
stay listed with their counts, costs and reports: those are kept apart from the lines.
"""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, delete, func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from runner.db.models import File, Job, JobAccount, JobError, Retention, ScheduleRun
from runner.db.partitions import WEEK, drop_week, present_weeks, week_bounds, week_bytes
from runner.db.session import SessionFactory
from runner.domain.errors import StateConflict
from runner.domain.states import LIVE_JOB_STATES
from runner.services.audit import record
from runner.services.job_accounts import freeze_account
from runner.services.retention_rule import read_rule
from runner.services.rollup import differences, rebuild

logger = logging.getLogger(__name__)

_EVERY = timedelta(days=1)
_TRIES, _PAUSE_SECONDS = 5, 1.0
_BUSY_STATES = {"55P03", "40P01"}  # a lock was not to be had in time
_ENDED_AT = func.greatest(Job.completed_at, Job.failed_at, Job.expired_at, Job.cancelled_at)
BUSY = "its tables were in use; it is tried again"


@dataclass(frozen=True, slots=True)
class Week:
    """The jobs that were created in a week (from a Monday, UTC), as far as their lines are there.

    ``due_at`` is when they may go, None while nothing says so; ``holds`` is why they can't.
    """

    start: datetime
    jobs: int
    lines: int
    bytes: int
    due_at: datetime | None
    is_due: bool
    holds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Removal:
    """What a removal did: the weeks whose lines went, and those that were due and had to stay."""

    removed: tuple[Week, ...]
    held: tuple[Week, ...]


def list_weeks(session: Session, now: datetime | None = None) -> list[Week]:
    """The weeks that hold lines, the oldest first, as of now or of another moment."""
    now = now or _present(session)
    days = read_rule(session).days
    return [_look(session, start, days, now) for start in _old_weeks(session, now)]


def remove_old_lines(sessions: SessionFactory, now: datetime | None = None) -> Removal:
    """Drop the lines of every week that is due, now or at another moment, and that nothing holds.

    Raises:
        StateConflict: no rule is set.
    """
    removed: list[Week] = []
    held: list[Week] = []
    with sessions() as session:
        now = now or _present(session)
        days = read_rule(session).days
        starts = list(_old_weeks(session, now))
    if days is None:
        raise StateConflict("Lines are kept for ever; set a rule with: tokenmill retention --days.")
    for start in starts:
        with sessions.begin() as session:
            week = _look(session, start, days, now)
            if not week.is_due:
                continue
            holds = (*week.holds, *_unbalanced(session, start))
        if not holds and not _try_to_remove(sessions, week, now):
            holds = (BUSY,)
        (held if holds else removed).append(replace(week, holds=holds))
    with sessions.begin() as session:
        session.execute(update(Retention).values(applied_at=func.now()))
    return Removal(tuple(removed), tuple(held))


def remove_when_due(sessions: SessionFactory) -> None:
    """Apply the rule, if there is one, once a day; what stays is logged with its reason."""
    with sessions() as session:
        now = _present(session)
        rule = read_rule(session)
    if rule.days is None or (rule.applied_at is not None and rule.applied_at > now - _EVERY):
        return
    for week in remove_old_lines(sessions, now).held:
        logger.warning(
            "The lines of the week from %s stay: %s.",
            f"{week.start:%Y-%m-%d}",
            "; ".join(week.holds),
            extra={"action": "retention_held"},
        )


def _present(session: Session) -> datetime:
    return session.execute(select(func.now())).scalar_one()


def _old_weeks(session: Session, now: datetime) -> list[datetime]:
    """The weeks that have begun; those ahead are empty."""
    return [start for start in present_weeks(session.connection()) if start <= now]


def _look(session: Session, start: datetime, days: int | None, now: datetime) -> Week:
    query = select(
        func.count(),
        func.coalesce(func.sum(Job.total_items), 0),
        func.count().filter(Job.state.in_(LIVE_JOB_STATES)),
        func.max(_ENDED_AT),
    )
    jobs, lines, live, last_end = session.execute(query.where(_is_of(start))).one()
    due_at = None
    if days is not None and not live:
        due_at = max(start + WEEK, last_end or start) + timedelta(days=days)
    return Week(
        start,
        jobs,
        int(lines),
        week_bytes(session.connection(), start),
        due_at,
        due_at is not None and due_at <= now,
        tuple(_holds(session, start, live, now)),
    )


def _is_of(start: datetime) -> ColumnElement[bool]:
    first, beyond = week_bounds(start)
    return (Job.id >= first) & (Job.id < beyond)


def _holds(session: Session, start: datetime, live: int, now: datetime) -> Iterator[str]:
    """What keeps a week from going, whatever its age."""
    if live:
        yield f"{live} of its jobs {'has' if live == 1 else 'have'} not ended"
    promised = select(func.count(), func.max(File.expires_at)).where(
        File.job_id.in_(select(Job.id).where(_is_of(start))),
        File.deleted_at.is_(None),
        File.expires_at > now,
    )
    files, last = session.execute(promised).one()
    if files:
        yield f"{files} output files were asked to live, the last until {last:%Y-%m-%d %H:%M} UTC"
    awaited = select(func.count()).where(
        ScheduleRun.output_state == "waiting",
        ScheduleRun.job_id.in_(select(Job.id).where(_is_of(start))),
    )
    runs = session.scalar(awaited)
    if runs:
        yield f"the output of {runs} runs of schedules is still to be written"


def _unbalanced(session: Session, start: datetime) -> list[str]:
    """Costs must outlive the ledger: what accounts and the roll-up lack is made of it now, or it
    stays."""
    is_frozen = select(JobAccount.job_id).where(JobAccount.job_id == Job.id).exists()
    # Those that ended before there were accounts.
    lacking = select(Job.id).where(_is_of(start), Job.output_lines > 0, ~is_frozen)
    for job_id in session.scalars(lacking).all():
        freeze_account(session, job_id)
    for found in differences(session, week_bounds(start)):
        rebuild(session, found.job_id)
    session.flush()
    wrong = len(differences(session, week_bounds(start)))
    return [f"the roll-up of {wrong} jobs differs; see: tokenmill costs check"] if wrong else []


def _try_to_remove(sessions: SessionFactory, week: Week, now: datetime) -> bool:
    """Whether the tables could be had, each time for so short a while that nobody waits long."""
    for left in reversed(range(_TRIES)):
        try:
            with sessions.begin() as session:
                _remove(session, week, now)
            return True
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", None) not in _BUSY_STATES:
                raise
        if left:
            time.sleep(_PAUSE_SECONDS)
    return False


def _remove(session: Session, week: Week, now: datetime) -> None:
    """Note it on the jobs, then drop the partitions: what locks most comes last."""
    session.execute(text("SET LOCAL lock_timeout = '500ms'"))
    ours = select(Job.id).where(_is_of(week.start))
    # Defaults and faults quote prompts.
    session.execute(
        update(Job).where(_is_of(week.start)).values(lines_removed_at=now, defaults=None)
    )
    session.execute(delete(JobError).where(JobError.job_id.in_(ours)))
    session.execute(
        update(File).where(File.job_id.in_(ours), File.deleted_at.is_(None)).values(deleted_at=now)
    )
    told = {"jobs": week.jobs, "lines": week.lines, "bytes": week.bytes}
    record(session, "retention.remove", f"{week.start:%Y-%m-%d}", actor="retention", detail=told)
    drop_week(session.connection(), week.start)
