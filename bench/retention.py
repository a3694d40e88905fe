"""How long it takes to remove the lines of a week that holds a large job, on a private Postgres.

``python bench/retention.py [--lines 1000000]`` writes one ended job of so many lines as services
leave it (items, shards, results, ledger, roll-up, account, output file), removes its lines by
retention and checks that what is reported of it is what it was. Deleting the same rows one by one
is timed beside it, in a transaction that is rolled back.
"""

import argparse
from datetime import UTC, datetime, timedelta

from scratch import clock, scratch_database
from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from runner.db.models import Base, File, Job
from runner.db.partitions import PARTITIONED_TABLES, ensure_partitions
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.ids import FileId, JobId, first_uuid_at
from runner.domain.states import JobState
from runner.services import files, keys
from runner.services.contents import OUTPUT, index_view
from runner.services.costs import Scope, spent_in_all
from runner.services.job_accounts import freeze_account
from runner.services.models import NewModel, PriceList, price_at, register_model
from runner.services.reports import JobReport, job_report
from runner.services.retention import list_weeks, remove_old_lines
from runner.services.retention_rule import set_rule
from runner.services.rollup import roll_up

_DAYS, _AGE = 30, timedelta(days=60)
_ROWS = (
    "INSERT INTO work_items SELECT :job, n, 'line-' || n, n::bigint * 400, 400"
    " FROM generate_series(0, :lines - 1) AS n",
    "INSERT INTO shards (job_id, shard_no, model_id, price_id, idx, state, attempt, succeeded)"
    " SELECT :job, n, :model, :price, array(SELECT generate_series(n * :size, upto - 1)), 'done',"
    " 1, upto - n * :size FROM generate_series(0, (:lines - 1) / :size) AS n,"
    " LATERAL (SELECT least((n + 1) * :size, :lines) AS upto)",
    "INSERT INTO results SELECT :job, n, false, 1, convert_to(repeat(md5(n::text), 16), 'UTF8')"
    " FROM generate_series(0, :lines - 1) AS n",
    "INSERT INTO usage (job_id, idx, project_id, model_id, price_id, worker_id, attempt,"
    " prompt_tokens, cached_tokens, output_tokens, queue_us, prefill_us, first_token_us, decode_us,"
    " total_us, device_us, preemptions, recomputed_tokens, billed_nano, run_cost_nano, created_at)"
    " SELECT :job, n, :project, :model, :price, :job, 1, 300, 120, 1 + n % 97, 5000, 20000, 25000,"
    " 90000, 120000, 40000 + n % 1000, 0, 0, 26500 + n % 7, 12500, :then"
    " FROM generate_series(0, :lines - 1) AS n",
)


def write_job(session: Session, lines: int) -> JobId:
    """A completed job of some weeks ago."""
    then = datetime.now(UTC) - _AGE
    ensure_partitions(session.connection(), then)
    project_id = keys.ensure_project(session, "bench")
    model = register_model(session, NewModel("bench", "stub:", 1024, {}), PriceList())
    price = price_at(session, model.id, datetime.now(UTC))
    job_id = JobId(first_uuid_at(then))
    upload = files.Upload("lines.jsonl", [b"{}\n"])
    source = files.create_file(session, project_id, upload, 1 << 20)
    job = Job(
        id=job_id,
        project_id=project_id,
        input_file_id=FileId(source.id),
        endpoint="/v1/chat/completions",
        completion_window="24h",
        request_sha256=b"",
        state=JobState.COMPLETED,
        model_id=model.id,
        total_items=lines,
        created_at=then,
        in_progress_at=then,
        finalizing_at=then,
        completed_at=then,
        expires_at=then,
    )
    session.add(job)
    session.flush()
    ids = {"job": job_id, "project": project_id, "model": model.id, "price": price.id}
    for statement in _ROWS:
        session.execute(text(statement), {**ids, "lines": lines, "size": 64, "then": then})
    _close(session, job)
    return job_id


def _close(session: Session, job: Job) -> None:
    """What closing leaves: the output file, frozen totals, the account, the roll-up."""
    session.add(
        File(
            id=job.output_file_id,
            project_id=job.project_id,
            purpose=files.OUTPUT_PURPOSE,
            filename="output.jsonl",
            size=0,
            job_id=job.id,
            view=OUTPUT,
        )
    )
    session.flush()
    size = index_view(session, job.id, OUTPUT, job.output_file_id, JobState.COMPLETED)
    job.output_lines, job.error_lines = size.lines, 0
    freeze_account(session, job.id)
    roll_up(session, job.id)
    spent = spent_in_all(session, Scope())
    job.prompt_tokens, job.output_tokens = spent.prompt_tokens, spent.output_tokens
    job.billed_nano, job.run_cost_nano = spent.billed_nano, spent.run_cost_nano


def delete_by_row(sessions: SessionFactory, job_id: JobId) -> None:
    """What retention would cost without partitions; undone at the end."""
    with sessions() as session:
        with clock("the same rows by DELETE (and a vacuum still to come)"):
            for name in PARTITIONED_TABLES:
                table = Base.metadata.tables[name]
                session.execute(delete(table).where(table.c.job_id == job_id))
        session.rollback()


def report_of(sessions: SessionFactory, job_id: JobId) -> tuple[JobReport, object]:
    """What is told of the job, and of all costs."""
    with sessions() as session:
        job = session.get_one(Job, job_id)
        return job_report(session, job.project_id, job_id), spent_in_all(session, Scope())


def main() -> None:
    """Write the job, remove its lines, compare what is told of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lines", type=int, default=1_000_000)
    lines = parser.parse_args().lines
    with scratch_database() as (database_url, _):
        sessions = create_session_factory(database_url)
        with clock(f"writing a job of {lines:,} lines"), sessions.begin() as session:
            job_id = write_job(session, lines)
            set_rule(session, _DAYS)
        before, costs = report_of(sessions, job_id)
        with sessions() as session:
            size = sum(week.bytes for week in list_weeks(session))
        delete_by_row(sessions, job_id)
        with clock(f"removing {size / 1024**2:,.0f} MiB by dropping partitions, with all checks"):
            removal = remove_old_lines(sessions)
        removed = sum(week.lines for week in removal.removed)
        after, costs_after = report_of(sessions, job_id)
        assert (removed, removal.held) == (lines, ())
        assert (after.account, after.job.totals, costs_after) == (
            before.account,
            before.job.totals,
            costs,
        )
        print(f"{removed:,} lines removed; account, totals and costs are what they were")


if __name__ == "__main__":
    main()
