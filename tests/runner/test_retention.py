"""Retention: old lines leave by whole partitions; what is reported of their jobs stays."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from databases import new_database
from sqlalchemy import delete, func, select, text, update
from timetable import Timetable
from typer.testing import CliRunner
from workshop import Workshop

from runner.cli.app import app
from runner.db.models import File, Job, JobAccount, Retention, ScheduleRun
from runner.db.partitions import ensure_partitions
from runner.domain.errors import Gone, InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JobId, first_uuid_at
from runner.embedded import ServiceUrls
from runner.services import contents, files, jobs, reports, retention, retries
from runner.services.costs import Scope, spent_in_all
from runner.services.line_usage import line_usage
from runner.services.retention import Removal
from runner.services.retention_rule import read_rule, set_rule
from runner.services.retries import RetryLines
from runner.services.rollup import differences

DAYS = 30
LATER = datetime.now(UTC) + timedelta(days=DAYS + 8)  # this week is over and its lines are due


@pytest.fixture
def database(services: ServiceUrls, template_database: str) -> Iterator[str]:
    """A database of its own: these tests drop its tables."""
    with new_database(services, template_database) as url:
        yield url


@pytest.fixture(autouse=True)
def rule(workshop: Workshop) -> None:
    with workshop.sessions.begin() as session:
        set_rule(session, DAYS)


def remove(workshop: Workshop, now: datetime = LATER) -> Removal:
    return retention.remove_old_lines(workshop.sessions, now)


def jobs_removed(removal: Removal) -> int:
    return sum(week.jobs for week in removal.removed)


def holds(removal: Removal) -> list[str]:
    return [reason for week in removal.held for reason in week.holds]


def promise(workshop: Workshop, until: datetime | None) -> None:
    workshop.execute(update(File).where(File.view == "output").values(expires_at=until))


def test_what_is_reported_of_a_job_outlives_its_lines(workshop: Workshop) -> None:
    job_id = workshop.make_job(9, defaults=b'{"max_tokens":9}')
    refused = workshop.make_job(b"not json")
    workshop.drain()
    project_id = workshop.caller.project_id
    with workshop.sessions() as session:
        before = reports.job_report(session, project_id, job_id)
        spent = spent_in_all(session, Scope())
    workshop.execute(delete(JobAccount))  # as if it had ended before these were kept
    assert jobs_removed(remove(workshop)) == 2
    with workshop.sessions() as session:
        after = reports.job_report(session, project_id, job_id)
        assert (after.account, after.job.totals) == (before.account, before.job.totals)
        assert spent_in_all(session, Scope()) == spent
        assert differences(session) == []
        with pytest.raises(Gone, match="removed on .* under retention"):
            line_usage(session, job_id)
        with pytest.raises(NotFound, match="removed on .* under retention"):
            files.get_file(session, project_id, before.job.output_file_id)
    for view in ("output", "error"):
        with pytest.raises(Gone, match="under retention"):
            contents.read_view(workshop.sessions, job_id, view)
    with workshop.sessions.begin() as session, pytest.raises(StateConflict, match="cannot be ret"):
        retries.retry_job(session, workshop.caller, job_id, RetryLines.ALL, 4)
    assert after.job.lines_removed_at == LATER
    assert after.job.defaults is None
    assert workshop.job(refused).faults == ()  # they quote the file
    workshop.tick()  # nothing is left to purge, and no step fails over it
    assert not jobs_removed(remove(workshop))


def test_a_week_stays_while_anything_in_it_is_to_be_kept(
    workshop: Workshop, timetable: Timetable, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id, live = workshop.make_job(3), workshop.make_job(3)
    worker_id = workshop.make_worker()
    workshop.run(worker_id, workshop.claim(worker_id))
    workshop.close_all()
    with workshop.sessions() as session:
        found = [week for week in retention.list_weeks(session, LATER) if week.jobs]
    assert [(week.jobs, week.is_due, week.holds) for week in found] == [
        (2, False, ("1 of its jobs has not ended",))
    ]
    workshop.cancel(live)
    workshop.close_all()

    promise(workshop, LATER + timedelta(hours=1))
    assert "1 output files were asked to live" in holds(remove(workshop))[0]
    promise(workshop, LATER)

    schedule = timetable.make()
    run_id = timetable.run_now(schedule).id
    waits = {"state": "started", "job_id": job_id, "output_state": "waiting"}
    workshop.execute(update(ScheduleRun).where(ScheduleRun.id == run_id).values(waits))
    assert "still to be written" in holds(remove(workshop))[0]
    workshop.execute(update(ScheduleRun).values(output_state="written"))

    with workshop.sessions() as session, monkeypatch.context() as patch:
        patch.setattr(retention, "_TRIES", 1)
        session.execute(text("SELECT FROM results"))
        assert retention.BUSY in holds(remove(workshop))
    assert workshop.job(job_id).lines_removed_at is None
    assert workshop.snapshot(job_id, "output").count(b"\n") == 3
    assert jobs_removed(remove(workshop)) == 2


def test_lines_that_are_not_due_stay_and_the_rule_is_applied_once_a_day(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(3)
    workshop.drain()
    assert jobs_removed(remove(workshop, LATER - timedelta(days=16))) == 0
    assert workshop.snapshot(job_id, "output").count(b"\n") == 3
    long_ago = func.now() - timedelta(days=2)
    workshop.execute(update(Retention).values(applied_at=long_ago))
    workshop.keep_house()
    applied = workshop.scalar(select(Retention.applied_at))
    assert applied is not None
    workshop.keep_house()
    assert workshop.scalar(select(Retention.applied_at)) == applied
    with workshop.sessions.begin() as session, pytest.raises(InvalidRequest, match="whole weeks"):
        set_rule(session, 6)


def old_job(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> JobId:
    """A job that was created, and has ended, five weeks ago."""
    then = datetime.now(UTC) - timedelta(weeks=5)
    with workshop.sessions.begin() as session:
        ensure_partitions(session.connection(), then)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "new_uuid", lambda: first_uuid_at(then))
        job_id = workshop.make_job(3)
    workshop.drain()
    workshop.execute(update(Job).where(Job.id == job_id).values(completed_at=then))
    return job_id


def test_the_command_sets_shows_and_applies_the_rule(
    workshop: Workshop, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("BROKER_URL", "memory://")

    def run(*words: str) -> str:
        done = CliRunner().invoke(app, ["retention", *words, "--data-dir", str(tmp_path)])
        assert done.exit_code == 0, done.output
        return done.output

    old = old_job(workshop, monkeypatch)
    assert "for ever" in run("--off")
    assert "3 " in run("--days", "7")
    told = json.loads(run("--now", "--json"))
    assert told["days"] == 7
    assert [(week["jobs"], week["lines"]) for week in told["removed"] if week["jobs"]] == [(1, 3)]
    assert workshop.job(old).lines_removed_at is not None
    upload = workshop.make_file(b"x")
    with workshop.sessions() as session:
        assert read_rule(session).days == 7
        file = files.get_file(session, workshop.caller.project_id, upload)
    assert file.expires_at == file.created_at + timedelta(days=7)
