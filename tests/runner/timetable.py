"""Schedules in a workshop: made, moved in time, and acted on as a CPU worker would."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from workshop import CHAT, Workshop

from runner.db.models import Job, Schedule, ScheduleRun
from runner.domain.ids import JobId
from runner.services import run_outputs, run_starts, schedule_runs, schedules
from runner.services.schedule_records import RunRecord, ScheduleRecord, Terms
from runner.services.schedules import Keeper

MINUTELY = "* * * * *"


def last_half_hour(now: datetime) -> str:
    """A cron of every minute up to this one and of none after it, until another half hour is over.

    So no further run comes due while a test is at it, however the minutes turn.
    """
    minutes = sorted((now.minute - ago) % 60 for ago in range(30))
    return f"{','.join(map(str, minutes))} * * * *"


class Timetable:
    """Time is moved by what a schedule believes to be next: the database's clock cannot be."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.keeper = Keeper(workshop.caller, workshop.settings.stores)
        self.project_id = workshop.caller.project_id
        now = workshop.scalar(select(func.date_trunc("minute", func.now())))
        assert isinstance(now, datetime)
        self.now = now

    def make(self, **fields: object) -> ScheduleRecord:
        terms = Terms("nightly", last_half_hour(self.now), CHAT)
        if not fields.keys() & {"input_file_id", "input_tag", "input_path"}:
            fields["input_file_id"] = self.workshop.make_file(b"{}")
        with self.workshop.sessions.begin() as session:
            return schedules.create_schedule(session, self.keeper, replace(terms, **fields))

    def change(self, schedule: ScheduleRecord, **fields: object) -> ScheduleRecord:
        terms = replace(schedule.terms, **fields)
        with self.workshop.sessions.begin() as session:
            return schedules.change_schedule(session, self.keeper, schedule.id, terms)

    def pause(self, schedule: ScheduleRecord) -> ScheduleRecord:
        with self.workshop.sessions.begin() as session:
            return schedules.pause_schedule(session, self.project_id, schedule.id)

    def resume(self, schedule: ScheduleRecord) -> ScheduleRecord:
        with self.workshop.sessions.begin() as session:
            return schedules.resume_schedule(session, self.project_id, schedule.id)

    def delete(self, schedule: ScheduleRecord) -> None:
        with self.workshop.sessions.begin() as session:
            schedules.delete_schedule(session, self.project_id, schedule.id)

    def look(self, schedule: ScheduleRecord) -> ScheduleRecord:
        with self.workshop.sessions() as session:
            return schedules.get_schedule(session, self.project_id, schedule.id)

    def run_now(self, schedule: ScheduleRecord) -> RunRecord:
        with self.workshop.sessions.begin() as session:
            return schedule_runs.run_now(session, self.project_id, schedule.id)

    def absent(self, schedule: ScheduleRecord, span: timedelta) -> datetime:
        """Nobody has planned for so long; returns the last planned time."""
        since = update(Schedule).where(Schedule.id == schedule.id)
        self.workshop.execute(since.values(next_at=self.now - span))
        return self.now

    def come(self, schedule: ScheduleRecord) -> None:
        """The next planned time is now."""
        self.absent(schedule, timedelta(0))

    def plan(self) -> int:
        with self.workshop.sessions.begin() as session:
            return schedule_runs.plan_runs(session)

    def start(self) -> int:
        return run_starts.start_runs(self.workshop.sessions, self.workshop.settings)

    def write(self) -> int:
        return run_outputs.write_outputs(self.workshop.sessions, self.workshop.settings)

    def runs(self, schedule: ScheduleRecord, limit: int = 1000) -> list[RunRecord]:
        """All runs, in the order of planned times."""
        with self.workshop.sessions() as session:
            page = schedule_runs.list_runs(session, self.project_id, schedule.id, None, limit)
        return list(reversed(page.items))

    def run(self, schedule: ScheduleRecord) -> RunRecord:
        """The last run."""
        return self.runs(schedule)[-1]

    def is_patient(self, run_id: UUID) -> None:
        """A run's pause after a failed try is over."""
        self.workshop.execute(
            update(ScheduleRun).where(ScheduleRun.id == run_id).values(next_try_at=func.now())
        )

    def finish(self) -> None:
        """Read, run and close every job."""
        for job_id in self.workshop.rows(select(Job.id).where(Job.state == "validating")):
            assert self.workshop.ingest(JobId(job_id[0]))
        self.workshop.drain()
