"""A crash at every fail-point there is: started again, the work ends as if nothing had been."""

from pathlib import Path

import pytest
from databases import new_database
from ledger import Epochs, check_files, check_job, epochs_of, without_ids
from scenario import Stage, play
from sqlalchemy import func, select

from runner.db.models import File, Job
from runner.db.session import SessionFactory, create_session_factory
from runner.embedded import ServiceUrls
from runner.failpoints import FailPoint

Files = dict[str, dict[str, bytes]]


@pytest.fixture(scope="session")
def undisturbed(crash_database: str, folder: Path) -> Files:
    """What the files of both jobs say when no process crashes."""
    return told(Stage(crash_database, folder, "undisturbed"), "")


def told(stage: Stage, plan: str) -> Files:
    """Play a scenario, check the invariants, and return the files of its jobs."""
    sessions = create_session_factory(stage.database_url, pool_size=1)
    try:
        return _told(stage, plan, sessions)
    finally:
        sessions.kw["bind"].dispose()


def _told(stage: Stage, plan: str, sessions: SessionFactory) -> Files:
    epochs: Epochs = {}

    def look() -> None:
        nonlocal epochs
        with sessions() as session:
            epochs = epochs_of(session, epochs)

    story = play(stage, plan, look)
    assert bool(story.crashes) == bool(plan), "the fail-point was not reached"
    files = {}
    for name in ("job", "other"):
        with sessions() as session:
            check_job(session, story.memory[name])
        content = check_files(sessions, story.memory[name])
        files[name] = {
            view: data.replace(stage.name.encode(), b"MODEL") for view, data in content.items()
        }
    check_once(sessions, story.memory["job"])
    written = without_ids(stage.output.read_bytes(), story.memory["job"])
    assert written.replace(stage.name.encode(), b"MODEL") == files["job"]["output"]
    return files


def check_once(sessions: SessionFactory, job_id: object) -> None:
    """Of the project there are two jobs, their two inputs, and no file that a retry made twice."""
    with sessions() as session:
        project = select(Job.project_id).where(Job.id == job_id).scalar_subquery()
        jobs = select(func.count()).where(Job.project_id == project)
        inputs = select(func.count()).where(File.project_id == project, File.purpose == "batch")
        assert (session.scalar(jobs), session.scalar(inputs)) == (2, 2)


@pytest.mark.parametrize("point", list(FailPoint))
def test_a_crash_at_any_point_loses_nothing_and_does_nothing_twice(
    point: FailPoint,
    crash_database: str,
    folder: Path,
    undisturbed: Files,
    services: ServiceUrls,
) -> None:
    plan = f"{point}=exit"
    if point not in (FailPoint.MIGRATE_BEFORE_COMMIT, FailPoint.MIGRATE_BEFORE_PARTITIONS):
        assert told(Stage(crash_database, folder, point), plan) == undisturbed
        return
    with new_database(services) as empty:
        assert told(Stage(empty, folder, point), plan) == undisturbed
