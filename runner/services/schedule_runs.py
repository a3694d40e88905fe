"""Runs of schedules: planned when their time has come, asked for by hand, and listed.

A planned time becomes a row once, whoever else plans and whatever the clock does: the row is
unique by schedule and time. What becomes of the row is decided elsewhere.
"""

import logging
from datetime import datetime, timedelta
from uuid import UUID
from zoneinfo import ZoneInfoNotFoundError

from sqlalchemy import and_, func, or_, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import Job, Schedule, ScheduleRun
from runner.domain.catch_up import ON_TIME, CatchUp, Due, Trigger, judge
from runner.domain.ids import ProjectId, new_uuid
from runner.domain.rings import Bell
from runner.domain.states import TERMINAL_JOB_STATES
from runner.doorbell import ring
from runner.failpoints import FailPoint, hit
from runner.services.audit import record
from runner.services.pages import Page, cut
from runner.services.run_starts import may_try
from runner.services.schedule_records import RunRecord, cron_of, run_records
from runner.services.schedules import find_schedule

logger = logging.getLogger(__name__)

LISTED = 50  # missed times that get a row; earlier ones leave no trace
WAITING_AT_MOST = 100
_CLOCKS_DIFFER = timedelta(minutes=1)
_PLANNED_AT_ONCE = 200


def plan_runs(session: Session) -> int:
    """Make the runs whose time has come, by the rules of their schedules; returns how many."""
    now = session.scalars(select(func.now())).one()
    # After a clock was set back the next time lies too far ahead, and runs lie in the future.
    ahead = select(ScheduleRun.id).where(
        ScheduleRun.schedule_id == Schedule.id, ScheduleRun.planned_at > now + _CLOCKS_DIFFER
    )
    due = (
        select(Schedule)
        .where(
            Schedule.state == "active",
            Schedule.deleted_at.is_(None),
            or_(Schedule.next_at <= now, ahead.exists()),
        )
        .order_by(Schedule.next_at)
        .limit(_PLANNED_AT_ONCE)
        .with_for_update(skip_locked=True)
    )
    made = sum(_plan(session, row, now) for row in session.scalars(due).all())
    if made:
        hit(FailPoint.PLAN_BEFORE_COMMIT)
    return made


def _plan(session: Session, row: Schedule, now: datetime) -> int:
    try:
        cron = cron_of(row)
    except ZoneInfoNotFoundError:
        _stop(row, f"This host has no time zone {row.zone} any more; choose another.")
        return 0
    start = row.next_at if row.next_at and row.next_at <= now else now
    due = judge(CatchUp(row.catch_up), cron.between(start, now, LISTED), now)
    made = sum(_add(session, row, one) for one in due)
    row.next_at = next(cron.after(now), None)
    if row.next_at is None:
        _stop(row, "Its cron names no time to come; change it.")
    return made


def _stop(row: Schedule, problem: str) -> None:
    row.state, row.problem, row.next_at = "paused", problem, None
    logger.warning("Schedule %s was paused: %s", row.id, problem, extra={"action": "paused"})


def _add(session: Session, row: Schedule, due: Due) -> int:
    values = {"id": new_uuid(), "schedule_id": row.id, "planned_at": due.planned_at}
    values["trigger"] = due.trigger
    if due.is_missed:
        values |= {"state": "skipped", "code": "missed", "reason": _missed(row)}
    elif _waiting(session, row.id) >= WAITING_AT_MOST:
        reason = f"{WAITING_AT_MOST} earlier runs wait already."
        values |= {"state": "skipped", "code": "queue_full", "reason": reason}
    done = session.execute(
        insert(ScheduleRun)
        .values(values)
        .on_conflict_do_nothing(index_elements=["schedule_id", "planned_at"])
        .returning(ScheduleRun.id)
    )
    return len(done.all())


def _missed(row: Schedule) -> str:
    minutes = ON_TIME // timedelta(minutes=1)
    return (
        f"Nothing was there to start it within {minutes} minutes, and the catch-up rule "
        f"{row.catch_up!r} does not make up for it."
    )


def _waiting(session: Session, schedule_id: UUID) -> int:
    query = select(func.count()).where(
        ScheduleRun.schedule_id == schedule_id, ScheduleRun.state == "waiting"
    )
    return session.scalars(query).one()


def run_now(session: Session, project_id: ProjectId, schedule_id: UUID) -> RunRecord:
    """Ask for a run at once, whether the schedule is paused or another run is under way."""
    row = find_schedule(session, project_id, schedule_id)
    run = ScheduleRun(schedule_id=row.id, planned_at=func.now(), trigger=Trigger.MANUAL)
    session.add(run)
    session.flush()
    session.refresh(run)
    record(session, "schedule.run", str(row.id), project_id=project_id, actor="api")
    ring(session, Bell.RUNS)
    return run_records(session, [run])[0]


def list_runs(
    session: Session, project_id: ProjectId, schedule_id: UUID, after: UUID | None, limit: int
) -> Page[RunRecord]:
    """A page of a schedule's runs, the latest planned first."""
    row = find_schedule(session, project_id, schedule_id)
    query = select(ScheduleRun).where(ScheduleRun.schedule_id == row.id)
    if after is not None:
        cursor = select(ScheduleRun.planned_at).where(ScheduleRun.id == after).scalar_subquery()
        query = query.where(ScheduleRun.planned_at < cursor)
    rows = session.scalars(query.order_by(ScheduleRun.planned_at.desc()).limit(limit + 1)).all()
    page = cut(rows, limit)
    return Page(run_records(session, page.items), page.has_more)


def ring_for_runs(session: Session) -> None:
    """Wake a CPU worker if a run can be started or its output written."""
    ended = select(Job.id).where(Job.id == ScheduleRun.job_id, Job.state.in_(TERMINAL_JOB_STATES))
    todo = select(ScheduleRun.id).where(
        may_try(),
        or_(
            ScheduleRun.state == "waiting",
            and_(ScheduleRun.output_state == "waiting", ended.exists()),
        ),
    )
    if session.scalar(todo.limit(1)) is not None:
        ring(session, Bell.RUNS)
