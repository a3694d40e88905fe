"""A backup of an installation at work, restored into an empty one, which goes on with the work."""

import json
from collections.abc import Iterator
from copy import copy
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from databases import new_database
from sqlalchemy import func, select
from typer.testing import CliRunner
from workshop import Workshop

from runner.backup import BackupError, back_up, open_archive, restore
from runner.cli.app import app
from runner.db import migrate
from runner.db.models import AuditEntry, Job
from runner.db.session import create_session_factory
from runner.domain.ids import JobId
from runner.embedded import ServiceUrls
from runner.services import keys
from runner.services.reports import job_report


@pytest.fixture
def empty_url(services: ServiceUrls) -> Iterator[str]:
    with new_database(services) as url:
        yield url


def rows_of(url: str) -> dict[str, int]:
    """How many rows each table of a database has."""
    tables = (
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    )
    with psycopg.connect(url.replace("+psycopg", "", 1)) as connection:
        return {
            name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
            for (name,) in connection.execute(tables).fetchall()
        }


@pytest.fixture
def there(workshop: Workshop, empty_url: str) -> Iterator[Workshop]:
    """The same workshop on the database that is restored into."""
    other = copy(workshop)
    other.sessions = create_session_factory(empty_url)
    yield other
    other.sessions.kw["bind"].dispose()


def test_an_installation_goes_on_in_another_database(
    workshop: Workshop, there: Workshop, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    with workshop.sessions.begin() as session:
        secret = keys.create_key(session, "house", "nightly")[1]
    ended = workshop.make_job(5)
    workshop.drain()
    running, waiting = workshop.make_job(8), workshop.make_job(3, ingested=False)
    worker_id = workshop.make_worker()
    (first,) = workshop.claim(worker_id)
    assert workshop.claim(worker_id)
    workshop.run(worker_id, [first])
    output = workshop.snapshot(ended, "output")
    report = report_of(workshop, ended)
    before, newest = rows_of(database_url), select(func.max(AuditEntry.id))
    last = workshop.scalar(newest)
    manifest = back_up(database_url, tmp_path / "all.zip")
    assert manifest.contents.tables == before
    assert (tmp_path / "all.zip").stat().st_mode & 0o077 == 0
    workshop.cancel(running)  # after it was made: not in it

    migrate.upgrade(empty_url)  # as a start of the new installation leaves it
    restore(empty_url, open_archive(tmp_path / "all.zip"))
    after = rows_of(empty_url)
    assert {**after, "audit": after["audit"] - 1} == before  # the restore itself is noted
    assert there.scalar(newest) == last + 1, "sequences go on where they were"
    assert there.snapshot(ended, "output") == output
    assert report_of(there, ended) == report
    assert [shard.state for shard in there.shards(running)] == ["done", "open"]
    assert [shard.attempt for shard in there.shards(running)] == [1, 0]
    assert there.worker(worker_id).state == "ended"
    with there.sessions.begin() as session:
        assert keys.authenticate(session, secret).project_id == workshop.caller.project_id
    assert there.ingest(waiting)
    there.drain()
    for job_id, lines in ((running, 8), (waiting, 3), (there.make_job(2), 0)):
        assert there.job(job_id).totals.succeeded == lines
    with pytest.raises(BackupError, match="not empty: it has projects, models, files, jobs"):
        restore(empty_url, open_archive(tmp_path / "all.zip"))


def report_of(workshop: Workshop, job_id: JobId) -> object:
    with workshop.sessions() as session:
        return job_report(session, workshop.caller.project_id, job_id)


def test_deadlines_stand_still_between_backup_and_restore(
    workshop: Workshop, there: Workshop, database_url: str, empty_url: str, tmp_path: Path
) -> None:
    job_id = workshop.make_job(3)
    left = Job.expires_at - func.now()
    before = workshop.scalar(select(left).where(Job.id == job_id))
    back_up(database_url, tmp_path / "all.zip")
    restore(empty_url, open_archive(tmp_path / "all.zip"))
    after = there.scalar(select(left).where(Job.id == job_id))
    assert abs(before - after) < timedelta(seconds=60)


def test_what_is_no_sound_backup_is_refused_before_anything_is_touched(
    workshop: Workshop, database_url: str, tmp_path: Path
) -> None:
    target = tmp_path / "all.zip"
    back_up(database_url, target)
    with pytest.raises(BackupError, match="exists already"):
        back_up(database_url, target)
    sound = target.read_bytes()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("all")] == ["all.zip"]
    for spoilt in (
        sound[: len(sound) // 2],
        sound[:2000] + bytes([sound[2000] ^ 1]) + sound[2001:],
        b"",
    ):
        target.write_bytes(spoilt)
        with pytest.raises(BackupError, match="no whole backup"):
            open_archive(target)
    with pytest.raises(BackupError, match="cannot be read: No such file"):
        open_archive(tmp_path / "none.zip")
    with pytest.raises(BackupError, match="cannot be written: No such file"):
        back_up(database_url, tmp_path / "nowhere" / "all.zip")


def test_the_commands_do_it(
    workshop: Workshop,
    database_url: str,
    empty_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workshop.make_file(b"x")
    monkeypatch.setenv("BROKER_URL", "memory://")
    place, target = ("--data-dir", str(tmp_path / "data")), str(tmp_path / "all.zip")

    def run(url: str, *words: str) -> str:
        monkeypatch.setenv("DATABASE_URL", url)
        done = CliRunner().invoke(app, [*words, *place])
        assert done.exit_code == 0, done.output
        return done.output

    told = json.loads(run(database_url, "backup", target, "--json"))
    assert (told["tables"]["files"], told["rows"]) == (1, sum(told["tables"].values()))
    assert "is restored" in run(empty_url, "restore", target)
    monkeypatch.setenv("DATABASE_URL", database_url)
    refused = CliRunner().invoke(app, ["restore", target, *place])
    assert (refused.exit_code, "not empty" in refused.output) == (2, True)
