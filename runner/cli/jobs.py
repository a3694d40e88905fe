"""``tokenmill submit`` and ``tokenmill jobs``: the whole path, from a terminal."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from runner.cli.console import AsJson, DataDir, age, money, plain, print_json, print_table
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import installation
from runner.cli.moments import RunHoursText, StartAfter, as_moment
from runner.cli.progress import watch
from runner.cli.projects import acting_for, read_id
from runner.domain import ids
from runner.domain.budgets import read_amount
from runner.domain.ids import JobId, ProjectId
from runner.domain.lines import ENDPOINTS
from runner.domain.reuse import Dedupe
from runner.runtime import Runtime
from runner.services import contents, files, jobs, pausing, projects, reports
from runner.services.job_records import JobRecord
from runner.services.jobs import NewJob
from runner.services.keys import Caller

app = typer.Typer(help="Jobs: one submitted file and its life.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="The project that owns the job.")]
_READ_BYTES = 1024**2


def register(parent: typer.Typer) -> None:
    """Add ``submit`` to the command line; the group is completed by job_verbs.py."""
    parent.command()(submit)


def submit(
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A JSONL file.")],
    wait: Annotated[bool, typer.Option("--wait", help="Stay until the job has ended.")] = False,
    output: Annotated[Path | None, typer.Option(help="With --wait: where answers go.")] = None,
    errors: Annotated[Path | None, typer.Option(help="With --wait: where faults go.")] = None,
    endpoint: Annotated[
        str | None, typer.Option(help="Else the url of the file's first line.")
    ] = None,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Run the good lines of a file with bad ones.")
    ] = False,
    dedupe: Annotated[
        Dedupe,
        typer.Option(help="Compute equal lines once: in the job, or with earlier of the project."),
    ] = Dedupe.OFF,
    max_cost: Annotated[
        str | None, typer.Option(help="Pause the job before it is billed more, such as 2.50.")
    ] = None,
    on_budget: Annotated[
        str, typer.Option(help="A job that will not fit its limits: refuse it, or pause it then.")
    ] = "refuse",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher goes first.")] = 0,
    tag: Annotated[list[str], typer.Option(help="What it is for; may be repeated.")] = [],  # noqa: B006
    p99_ms: Annotated[
        int | None, typer.Option(min=1, help="Alert when the p99 of line latency is above this.")
    ] = None,
    window: Annotated[str, typer.Option(help="It is to end within: from 10s to 7d.")] = "24h",
    start_after: StartAfter = None,
    run_hours: RunHoursText = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Submit a file as a job; with --wait, stay until it has ended."""
    with installation(data_dir) as runtime:
        caller = caller_of(runtime, project)
        with runtime.transaction() as session:
            upload = files.Upload(file.name, _pieces(file))
            stored = files.create_file(
                session, caller.project_id, upload, runtime.settings.max_file_bytes
            )
            new = NewJob(
                input_file_id=stored.id,
                endpoint=endpoint or _endpoint_of(file),
                completion_window=window,
                start_after=as_moment(start_after),
                run_hours=run_hours,
                request_sha256=hashlib.sha256(stored.id.bytes).digest(),
                on_invalid="skip" if skip_invalid else "fail",
                dedupe=dedupe,
                max_cost_nano=None if max_cost is None else read_amount(max_cost, "--max-cost"),
                on_budget=on_budget,
                priority=priority,
                tags=tuple(tag),
                p99_bound_ms=p99_ms,
            )
            job = jobs.create_job(session, caller, new)
        if wait:
            job = watch(lambda: _look(runtime, caller.project_id, job.id))
            _save(runtime, job, contents.OUTPUT, output)
            _save(runtime, job, contents.ERROR, errors)
    show_job(job, as_json)
    if wait and (job.state != "completed" or job.totals.failed):
        raise typer.Exit(ExitCode.FAILURES)


@app.command("ls")
def list_all(
    project: Project = "default",
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List a project's jobs, newest first."""
    with acting_for(project, data_dir) as acting:
        page = jobs.list_jobs(acting.session, acting.project_id, None, limit)
    if as_json:
        print_json([_shown(job) for job in page.items])
        return
    rows = [
        (
            ids.encode(ids.JOB_PREFIX, job.id),
            "paused" if job.pause_reason else job.state.value,
            f"{job.totals.succeeded + job.totals.failed}/{job.total}",
            job.totals.failed,
            job.totals.output_tokens,
            money(job.totals.billed_nano),
            age(job.created_at),
        )
        for job in page.items
    ]
    print_table(("job", "state", "lines", "failed", "tokens out", "billed", "created"), rows)


@app.command()
def show(
    job: str, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show one job with its report: tokens, money, latency, and faults of its file."""
    with acting_for(project, data_dir) as acting:
        report = reports.job_report(acting.session, acting.project_id, read_job_id(job))
    if as_json:
        print_json({**_shown(report.job), "report": {**plain(report), "job": None}})
        return
    show_job(report.job, as_json=False)
    rows = [
        (name, *(None if value is None else f"{value / 1000:,.1f}" for value in values))
        for name, values in (
            ("queue", plain(report.account.queue).values()),
            ("first token", plain(report.account.first_token).values()),
            ("per token", plain(report.account.per_token).values()),
            ("total", plain(report.account.total).values()),
        )
    ]
    print_table(("milliseconds", "p50", "p90", "p99"), rows)
    if report.account.lanes:
        print_table(
            ("lane", "lines", "why not faster"),
            [(use.lane.name, use.lines, use.lane.reason) for use in report.account.lanes],
        )
    for told in report.alerts:
        typer.echo(f"Alert: {told.message}")
    if report.waste.attempts:
        typer.echo(
            f"{report.waste.attempts:,} attempts came to nothing, "
            f"{report.waste.device_us / 1e6:,.1f} s of device time."
        )
    if report.account.reused_lines:
        typer.echo(
            f"{report.account.reused_lines:,} lines took the answers of others, which saved "
            f"{money(report.account.saved_nano, 9)}."
        )
    if report.account.truncated_lines:
        typer.echo(
            f"{report.account.truncated_lines:,} prompts were shortened, "
            f"by {report.account.truncated_tokens:,} tokens in all."
        )


@app.command()
def cancel(
    job: str, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Stop a job; finished lines stay."""
    with acting_for(project, data_dir) as acting:
        record = jobs.cancel_job(acting.session, acting.project_id, read_job_id(job))
    show_job(record, as_json)


@app.command()
def pause(
    job: str, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Hold a job: nothing more of it is leased, its deadline stands still."""
    with acting_for(project, data_dir) as acting:
        record = pausing.pause_job(acting.session, acting.project_id, read_job_id(job))
    show_job(record, as_json)


@app.command()
def resume(
    job: str,
    max_cost: Annotated[str | None, typer.Option(help="Its limit from now on.")] = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Let a paused job go on."""
    with acting_for(project, data_dir) as acting:
        limit = None if max_cost is None else read_amount(max_cost, "--max-cost")
        record = pausing.resume_job(acting.session, acting.project_id, read_job_id(job), limit)
    show_job(record, as_json)


@app.command()
def results(
    job: str,
    output: Annotated[Path | None, typer.Option(help="Else answers go to standard output.")] = None,
    errors: Annotated[Path | None, typer.Option(help="Where faults go.")] = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write a job's answers (so far), in line order; with --json, its counts are printed too."""
    with installation(data_dir) as runtime:
        caller = caller_of(runtime, project)
        record = _look(runtime, caller.project_id, read_job_id(job))
        if output is None and not as_json:
            for line in contents.read_view(runtime.sessions, record.id, contents.OUTPUT):
                typer.echo(line, nl=False)
        _save(runtime, record, contents.OUTPUT, output)
        _save(runtime, record, contents.ERROR, errors)
    if as_json:
        print_json(_shown(record))


def caller_of(runtime: Runtime, project: str) -> Caller:
    with runtime.transaction() as session:
        return Caller(projects.find_project(session, project))


def _look(runtime: Runtime, project_id: ProjectId, job_id: JobId) -> JobRecord:
    with runtime.transaction() as session:
        return jobs.get_job(session, project_id, job_id)


def read_job_id(text: str) -> JobId:
    """The job that a person means."""
    return JobId(read_id(ids.JOB_PREFIX, text, "job", "jobs ls"))


def _pieces(file: Path) -> Iterator[bytes]:
    with file.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            yield piece


def _endpoint_of(file: Path) -> str:
    """The url of the first line; whatever is wrong with the line, validation will say it."""
    with file.open("rb") as stream:
        first = stream.readline(_READ_BYTES).removeprefix(b"\xef\xbb\xbf")
    try:
        url = msgspec.json.decode(first, type=dict[str, object]).get("url")
    except msgspec.DecodeError:
        url = None
    return url if isinstance(url, str) and url in ENDPOINTS else ENDPOINTS[0]


def _save(runtime: Runtime, job: JobRecord, view: str, target: Path | None) -> None:
    if target is None:
        return
    with target.open("wb") as stream:
        for line in contents.read_view(runtime.sessions, job.id, view):
            stream.write(line)


def _shown(job: JobRecord) -> dict[str, object]:
    """A job as printed by --json: wire ids, exact money."""
    return {
        **plain(job),
        "model": job.model,
        "id": ids.encode(ids.JOB_PREFIX, job.id),
        "project_id": ids.encode(ids.PROJECT_PREFIX, job.project_id),
        "defaults": None if job.defaults is None else msgspec.json.decode(job.defaults),
        "input_file_id": ids.encode(ids.FILE_PREFIX, job.input_file_id),
        "output_file_id": job.output_file_id and ids.encode(ids.FILE_PREFIX, job.output_file_id),
        "error_file_id": job.error_file_id and ids.encode(ids.FILE_PREFIX, job.error_file_id),
    }


def show_job(job: JobRecord, as_json: bool) -> None:
    """Print a job: its state, why it waits, counts and cost."""
    if as_json:
        print_json(_shown(job))
        return
    totals = job.totals
    rows = [
        ("job", ids.encode(ids.JOB_PREFIX, job.id)),
        ("state", "paused" if job.pause_reason else job.state.value),
        *_plans(job),
        ("lines", f"{totals.succeeded} answered, {totals.failed} failed, {job.total} in all"),
        ("tokens in", f"{totals.prompt_tokens} ({totals.cached_tokens} cached)"),
        ("tokens out", totals.output_tokens),
        ("billed", money(totals.billed_nano, 9)),
        ("cost to run", money(totals.run_cost_nano, 9)),
        ("margin", money(totals.billed_nano - totals.run_cost_nano, 9)),
    ]
    if job.dedupe is not Dedupe.OFF:
        rows.insert(-5, ("reused", f"{totals.reused} lines took the answers of others"))
    if job.max_cost_nano is not None:
        rows.append(("limit", money(job.max_cost_nano, 9)))
    rows += [("lines gone", reason) for reason in dict.fromkeys(job.gone.values())]
    print_table(("", ""), rows)
    show_faults(job)


def _plans(job: JobRecord) -> Iterator[tuple[str, object]]:
    """What is told of a job's turn, where there is anything to tell."""
    if job.phase_reason:
        yield "waits", job.phase_reason
    if job.priority:
        yield "priority", job.priority
    if job.start_after is not None:
        yield "starts after", f"{job.start_after:%Y-%m-%d %H:%M:%S} UTC"
    if job.run_hours is not None:
        yield "runs within", job.run_hours
    if not job.state.is_terminal:
        yield "ends by", f"{job.expires_at:%Y-%m-%d %H:%M:%S} UTC"


def show_faults(job: JobRecord) -> None:
    """Name what is wrong with a job's file, line by line."""
    for fault in job.faults:
        place = "file" if fault.line is None else f"line {fault.line}"
        typer.echo(f"{place}: {fault.message} [{fault.code}]")
    if job.fault_count > len(job.faults):
        typer.echo(f"… and {job.fault_count - len(job.faults):,} more faults")
