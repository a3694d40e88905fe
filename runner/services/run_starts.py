"""Starting runs: from a planned time to a job on the input that there is then.

A run's row is locked while its input is fetched, so a starter that dies leaves it free at once,
and the file, the job and the note of it come in one transaction or not at all.
"""

import hashlib
import logging
from dataclasses import replace
from uuid import UUID

from sqlalchemy import ColumnElement, func, or_, select, update
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.clock import seconds_from_now
from runner.db.models import Job, Schedule, ScheduleRun
from runner.db.session import OUTAGES, SessionFactory
from runner.domain.addresses import Address, parse_address
from runner.domain.catch_up import Trigger
from runner.domain.errors import NotFound, RunnerError, Unavailable
from runner.domain.ids import ApiKeyId, FileId, ProjectId, ScheduleId
from runner.domain.overlap import Overlap, rule_for
from runner.domain.states import LIVE_JOB_STATES
from runner.failpoints import FailPoint, hit
from runner.services import files, jobs
from runner.services.keys import Caller
from runner.services.schedule_records import cron_of, terms_of
from runner.services.schedules import job_asked_for, stores_of

logger = logging.getLogger(__name__)

_TRIES = 6
_BUG = "It could not be started; the log says why."
_FIRST_PAUSE, _LONGEST_PAUSE = 10, 600  # seconds between tries, doubled each time


class LeftOut(RunnerError):
    """The run becomes no job, by its schedule's rules or state."""

    code = "left_out"


def start_runs(sessions: SessionFactory, settings: Settings) -> int:
    """Start every run that waits and may start, in the order of planned times."""
    waiting = (
        select(ScheduleRun.id)
        .where(ScheduleRun.state == "waiting", may_try())
        .order_by(ScheduleRun.planned_at)
    )
    with sessions() as session:
        ids = session.scalars(waiting).all()
    return sum(_start(sessions, settings, run_id) for run_id in ids)


def may_try() -> ColumnElement[bool]:
    """Whether a run's pause after a failed try is over; a clock set back starts no pause."""
    return or_(ScheduleRun.tries == 0, ScheduleRun.next_try_at <= func.now())


def postpone(tries: int) -> dict[str, object]:
    """The columns of a run that is tried again later."""
    pause = min(_FIRST_PAUSE * 2**tries, _LONGEST_PAUSE)
    return {"tries": tries + 1, "next_try_at": seconds_from_now(pause)}


def _start(sessions: SessionFactory, settings: Settings, run_id: UUID) -> bool:
    try:
        with sessions.begin() as session:
            run = _lock(session, run_id)
            if run is None or not _is_next(session, run):
                return False
            _become_job(session, run, settings)
            hit(FailPoint.RUN_BEFORE_COMMIT)
            return True
    except LeftOut as left_out:
        _end(sessions, run_id, "skipped", left_out.code, left_out.message)
    except Unavailable as error:
        _try_again(sessions, run_id, error)
    except RunnerError as error:
        code = "input_missing" if isinstance(error, NotFound) else error.code
        _end(sessions, run_id, "failed", code, error.message)
    except OUTAGES:
        raise
    except Exception:  # one run's trouble must not starve the others
        logger.exception("A run could not be started.", extra={"action": "run_failed"})
        _try_again(sessions, run_id, Unavailable(_BUG, code="internal_error"))
    return False


def _lock(session: Session, run_id: UUID) -> ScheduleRun | None:
    query = select(ScheduleRun).where(
        ScheduleRun.id == run_id, ScheduleRun.state == "waiting", may_try()
    )
    return session.scalars(query.with_for_update(skip_locked=True)).one_or_none()


def _is_next(session: Session, run: ScheduleRun) -> bool:
    """Whether a run's turn has come.

    Raises:
        LeftOut: it never will.
    """
    schedule = session.get_one(Schedule, run.schedule_id)
    if schedule.deleted_at is not None:
        raise LeftOut("The schedule was deleted before the run began.", code="deleted")
    if schedule.state == "paused" and run.trigger != Trigger.MANUAL:
        raise LeftOut("The schedule was paused before the run began.", code="paused")
    rule = rule_for(Overlap(schedule.overlap), Trigger(run.trigger))
    if rule is Overlap.ALLOW:
        return True
    # The one before is asked for first: what starts between the two questions is seen by one.
    before = select(ScheduleRun.id).where(
        ScheduleRun.schedule_id == run.schedule_id,
        ScheduleRun.state == "waiting",
        ScheduleRun.trigger != Trigger.MANUAL,
        ScheduleRun.planned_at < run.planned_at,
    )
    if session.scalar(before.limit(1)) is not None:
        return False
    running = select(Job.id).where(
        Job.schedule_id == run.schedule_id, Job.state.in_(LIVE_JOB_STATES)
    )
    if session.scalar(running.limit(1)) is None:
        return True
    if rule is Overlap.SKIP:
        raise LeftOut("An earlier run had not ended.", code="overlap")
    return False


def _become_job(session: Session, run: ScheduleRun, settings: Settings) -> None:
    schedule = session.get_one(Schedule, run.schedule_id)
    file_id = _input(session, schedule, run, settings)
    key_id = ApiKeyId(schedule.api_key_id) if schedule.api_key_id else None
    caller = Caller(ProjectId(schedule.project_id), key_id)
    sha256 = hashlib.sha256(b"schedule\n" + run.id.bytes).digest()
    new = job_asked_for(terms_of(schedule), file_id, sha256)
    new = replace(new, schedule_id=ScheduleId(schedule.id))
    run.job_id = jobs.create_job(session, caller, new).id
    run.state, run.started_at, run.tries = "started", func.now(), 0
    run.code = run.reason = None
    run.output_state = "none" if schedule.output_path is None else "waiting"


def _input(session: Session, schedule: Schedule, run: ScheduleRun, settings: Settings) -> FileId:
    """The file of a run, fetched if need be.

    Raises:
        NotFound: there is none.
    """
    project_id = ProjectId(schedule.project_id)
    if schedule.input_file_id is not None:
        try:
            return files.get_file(session, project_id, schedule.input_file_id).id
        except NotFound:
            raise NotFound("The file of the schedule was deleted.") from None
    if schedule.input_tag is not None:
        found = files.newest_with_tag(session, project_id, schedule.input_tag)
        if found is None:
            raise NotFound(f"No file has the tag {schedule.input_tag!r}.")
        return found
    address = address_of(schedule, run, schedule.input_path or "")
    stores = stores_of(session, project_id, settings.stores)
    pieces = stores.read(address, settings.max_file_bytes)
    upload = files.Upload(address.name, pieces)
    return files.create_file(session, project_id, upload, settings.max_file_bytes).id


def address_of(schedule: Schedule, run: ScheduleRun, pattern: str) -> Address:
    """The address of a run by a pattern of its schedule."""
    return parse_address(pattern, "path").at(run.planned_at, cron_of(schedule).zone)


def _end(sessions: SessionFactory, run_id: UUID, state: str, code: str, reason: str) -> None:
    with sessions.begin() as session:
        session.execute(
            update(ScheduleRun)
            .where(ScheduleRun.id == run_id, ScheduleRun.state == "waiting")
            .values(state=state, code=code, reason=reason)
        )


def _try_again(sessions: SessionFactory, run_id: UUID, error: Unavailable) -> None:
    with sessions.begin() as session:
        run = _lock(session, run_id)
        if run is None:
            return
        run.code, run.reason = error.code, error.message
        if run.tries + 1 >= _TRIES:
            run.state = "failed"
        else:
            for name, value in postpone(run.tries).items():
                setattr(run, name, value)
    logger.warning("A run waits: %s", error, extra={"action": "run_postponed"})
