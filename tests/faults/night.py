"""A schedule of every minute in an installation under fire, and what must be true of its runs."""

import os
import signal
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import psutil
import redis
from fire import SLOW_STUB
from installation import Server, chat_line, eventually
from ledger import check_job
from sqlalchemy import func, or_, select, update

from runner.config import load_settings
from runner.db.models import Job, Schedule, ScheduleRun
from runner.db.session import SessionFactory
from runner.domain.ids import FILE_PREFIX, FileId, decode
from runner.domain.states import TERMINAL_JOB_STATES
from runner.runtime import find_services
from runner.services.costs import Scope, spent_by
from runner.services.keys import Caller
from runner.services.projects import find_project
from runner.services.schedule_records import Terms
from runner.services.schedules import Keeper, create_schedule

MINUTE = timedelta(minutes=1)
_NAME = "under fire"


@dataclass(frozen=True)
class Night:
    """The schedule and how many lines each of its jobs has; ``first`` is the minute it began in."""

    sessions: SessionFactory
    schedule_id: UUID
    lines: int
    first: datetime

    @classmethod
    def begin(cls, server: Server, sessions: SessionFactory, lines: int) -> "Night":
        """Make it: whatever is missed is made up for, and jobs run beside each other."""
        content = b"".join(chat_line(f"r{n}", SLOW_STUB, f"line {n}") for n in range(lines))
        with server.client() as client:
            file_id = decode(FILE_PREFIX, client.files.create(file=content, purpose="batch").id)
        assert file_id is not None
        terms = Terms(
            _NAME, "* * * * *", "/v1/chat/completions",
            input_file_id=FileId(file_id), catch_up="all", overlap="allow",
        )  # fmt: skip
        with sessions.begin() as session:
            caller = Caller(find_project(session, "tests"))
            made = create_schedule(session, Keeper(caller), terms)
            now = session.scalars(select(func.date_trunc("minute", func.now()))).one()
        return cls(sessions, made.id, lines, now)

    def come(self, back: int) -> datetime:
        """Make a planned time of the past the next one; of those after it nothing is repeated."""
        planned_at = self.first - back * MINUTE
        self._let_next_be(planned_at)
        return planned_at

    def state(self, planned_at: datetime) -> str | None:
        """What became of a planned time; None while nobody has planned it."""
        query = select(ScheduleRun.state).where(
            ScheduleRun.schedule_id == self.schedule_id, ScheduleRun.planned_at == planned_at
        )
        with self.sessions() as session:
            return session.scalar(query)

    def end(self) -> list[ScheduleRun]:
        """Plan no more; once all has ended, the runs, checked, in the order of planned times."""
        self._let_next_be(self.first + timedelta(days=1))
        eventually(self._is_quiet, 180)
        query = select(ScheduleRun).where(ScheduleRun.schedule_id == self.schedule_id)
        with self.sessions() as session:
            runs = list(session.scalars(query.order_by(ScheduleRun.planned_at)))
        planned = [run.planned_at for run in runs]
        assert planned == [planned[0] + number * MINUTE for number in range(len(runs))]
        assert {run.state for run in runs} == {"started"}
        self._check_jobs(runs)
        return runs

    def _let_next_be(self, moment: datetime) -> None:
        with self.sessions.begin() as session:
            row = update(Schedule).where(Schedule.id == self.schedule_id)
            session.execute(row.values(next_at=moment))

    def _is_quiet(self) -> bool:
        """No run waits and no job lives."""
        waiting = select(ScheduleRun.id).where(
            ScheduleRun.schedule_id == self.schedule_id, ScheduleRun.state == "waiting"
        )
        live = select(Job.id).where(
            Job.schedule_id == self.schedule_id, Job.state.not_in(TERMINAL_JOB_STATES)
        )
        with self.sessions() as session:
            return not session.scalar(select(or_(waiting.exists(), live.exists())))

    def _check_jobs(self, runs: list[ScheduleRun]) -> None:
        """One job for each run, each whole; the cost of all of them under the schedule's name."""
        with self.sessions() as session:
            query = select(Job).where(Job.schedule_id == self.schedule_id)
            jobs = session.scalars(query).all()
            assert len(jobs) == len(runs)
            assert {job.id for job in jobs} == {run.job_id for run in runs}
            for job in jobs:
                assert (job.state, job.output_lines) == ("completed", self.lines)
                check_job(session, job.id)
            (spent,) = spent_by(session, Scope(schedule=_NAME), ("schedule",))
            assert spent.lines == self.lines * len(runs)
            assert spent.billed_nano == sum(job.billed_nano for job in jobs) > 0


def kill(server: Server, child: str) -> None:
    """``kill -9`` of a child of the supervisor, once it runs, with all that it started."""
    process = psutil.Process(eventually(lambda: server.status()["children"][child]["pid"]))
    for member in [*process.children(recursive=True), process]:
        os.kill(member.pid, signal.SIGKILL)


def flush(server: Server) -> None:
    """The broker forgets every message."""
    urls = find_services(load_settings(server.data_dir))
    with redis.Redis.from_url(urls.broker_url) as broker:
        broker.flushall()
