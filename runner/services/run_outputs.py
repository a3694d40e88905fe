"""Writing what a run's job answered back to a folder or bucket, once the job has ended.

The name is made of the planned time, so writing it again after a crash writes the same file.
"""

import logging
import time
from collections.abc import Iterator
from uuid import UUID

from sqlalchemy import Select, select, text
from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.models import Job, Schedule, ScheduleRun
from runner.db.session import SessionFactory
from runner.domain.errors import Gone, InvalidRequest, RunnerError
from runner.domain.states import TERMINAL_JOB_STATES, JobState
from runner.failpoints import FailPoint, hit
from runner.services import contents
from runner.services.run_starts import address_of, may_try, postpone
from runner.services.schedules import stores_of

logger = logging.getLogger(__name__)

ERRORS_ENDING = ".errors.jsonl"
_TRIES = 12  # over more than an hour
_IDLE_SECONDS = 30.0


def write_outputs(sessions: SessionFactory, settings: Settings) -> int:
    """Write the output of every run whose job has ended; returns how many were written."""
    with sessions() as session:
        ids = session.scalars(_ready().order_by(ScheduleRun.planned_at)).all()
    return sum(_write(sessions, settings, run_id) for run_id in ids)


def _ready() -> Select[UUID]:
    return (
        select(ScheduleRun.id)
        .join(Job, Job.id == ScheduleRun.job_id)
        .where(ScheduleRun.output_state == "waiting", may_try(), Job.state.in_(TERMINAL_JOB_STATES))
    )


def _write(sessions: SessionFactory, settings: Settings, run_id: UUID) -> bool:
    try:
        with sessions.begin() as session:
            run = _lock(session, run_id)
            if run is None:
                return False
            _write_views(session, sessions, settings, run)
            run.output_state, run.output_problem = "written", None
            hit(FailPoint.OUTPUT_BEFORE_COMMIT)
            return True
    except RunnerError as error:
        _note(sessions, run_id, error)
    return False


def _lock(session: Session, run_id: UUID) -> ScheduleRun | None:
    """The run, if it is still to be written and nobody writes it now."""
    query = select(ScheduleRun).where(ScheduleRun.id.in_(_ready()), ScheduleRun.id == run_id)
    return session.scalars(query.with_for_update(skip_locked=True)).one_or_none()


def _write_views(
    session: Session, sessions: SessionFactory, settings: Settings, run: ScheduleRun
) -> None:
    """Errors first: whoever sees the output may rely on the rest being there."""
    schedule, job = session.get_one(Schedule, run.schedule_id), session.get_one(Job, run.job_id)
    if job.state == JobState.FAILED:
        raise InvalidRequest("The file of the job was refused, so no line was run.")
    if schedule.output_path is None:
        raise InvalidRequest("The schedule asks for no output any more.")
    stores = stores_of(session, schedule.project_id, settings.stores)
    address = address_of(schedule, run, schedule.output_path)
    errors = address.beside(ERRORS_ENDING)
    if job.error_lines:
        stores.write(errors, _holding(session, contents.read_view(sessions, job.id, "error")))
    else:
        stores.remove(errors)  # of an earlier run of the same name
    stores.write(address, _holding(session, contents.read_view(sessions, job.id, "output")))


def _holding(session: Session, lines: Iterator[bytes]) -> Iterator[bytes]:
    """Lines, while the transaction that holds the run is kept from being idle for too long."""
    heard = time.monotonic()
    for line in lines:
        yield line
        if time.monotonic() - heard > _IDLE_SECONDS:
            session.execute(text("SELECT 1"))
            heard = time.monotonic()


def _note(sessions: SessionFactory, run_id: UUID, error: RunnerError) -> None:
    """Remember what went wrong, and try again unless that is hopeless."""
    with sessions.begin() as session:
        run = _lock(session, run_id)
        if run is None:
            return
        run.output_problem = error.message
        if run.tries + 1 >= _TRIES or isinstance(error, InvalidRequest | Gone):
            run.output_state = "failed"
        for name, value in postpone(run.tries).items():
            setattr(run, name, value)
    logger.warning("An output is not written: %s", error, extra={"action": "output_postponed"})
