"""How long a backup and a restore of one large job take, on a private Postgres.

``python bench/backup.py [--lines 1000000]`` writes the job of ``bench/retention.py``, backs the
installation up, and restores it into a second database of the same server.
"""

import argparse

import psycopg
from retention import report_of, write_job
from scratch import clock, scratch_database

from runner.backup import back_up, open_archive, restore
from runner.db.session import create_session_factory


def main() -> None:
    """Write the job, copy the installation twice, compare what is told of the job."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1_000_000)
    lines = parser.parse_args().lines
    with scratch_database() as (database_url, folder):
        sessions = create_session_factory(database_url)
        with clock(f"writing a job of {lines:,} lines"), sessions.begin() as session:
            job_id = write_job(session, lines)
        target = folder / "all.tokenmill"
        with clock("backup"):
            back_up(database_url, target)
        print(f"its file: {target.stat().st_size / 1024**2:,.0f} MiB")
        with clock("reading it to the end and comparing the checksum"):
            archive = open_archive(target)
        address = database_url.replace("postgresql+psycopg://", "postgresql://", 1)
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute("CREATE DATABASE restored")
        restored = database_url.replace("/tokenmill?", "/restored?", 1)
        with clock("restore"):
            restore(restored, archive)
        copies = create_session_factory(restored)
        assert report_of(copies, job_id) == report_of(sessions, job_id)
        print("the report of the job is the same")


if __name__ == "__main__":
    main()
