"""``tokenmill schedules``: what runs by itself."""

from typing import Annotated
from zoneinfo import ZoneInfo

import typer

from runner.cli.console import (
    AsJson,
    DataDir,
    money,
    plain,
    print_json,
    print_table,
)
from runner.cli.moments import RunHoursText
from runner.cli.projects import Acting, acting_for
from runner.domain import ids
from runner.domain.budgets import read_amount
from runner.domain.ids import FileId, ScheduleId
from runner.domain.lines import ENDPOINTS
from runner.domain.reuse import Dedupe
from runner.services import schedule_runs, schedules
from runner.services.schedule_records import RunRecord, ScheduleRecord, Terms
from runner.services.schedules import Keeper

app = typer.Typer(help="Schedules: jobs that come by themselves.", no_args_is_help=True)

Project = Annotated[str, typer.Option(help="The project that owns the schedule.")]
Which = Annotated[str, typer.Argument(help="The name or the id of a schedule.")]


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="schedules")


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call it.")],
    cron: Annotated[str, typer.Option(help="Five fields, such as '30 2 * * *'.")],
    zone: Annotated[str, typer.Option(help="The time zone of the cron.")] = "UTC",
    file: Annotated[str | None, typer.Option(help="Input: the id of a file.")] = None,
    tag: Annotated[str | None, typer.Option(help="Input: the newest file with a tag.")] = None,
    path: Annotated[
        str | None, typer.Option(help="Input: an address, such as s3://b/in/%Y-%m-%d.jsonl.")
    ] = None,
    output: Annotated[str | None, typer.Option(help="Where the output is written.")] = None,
    endpoint: Annotated[str, typer.Option(help="What the lines are for.")] = ENDPOINTS[0],
    catch_up: Annotated[str, typer.Option(help="Missed times: skip, latest or all.")] = "latest",
    overlap: Annotated[str, typer.Option(help="While one runs: skip, queue or allow.")] = "skip",
    window: Annotated[str, typer.Option(help="A job is to end within: 10s to 7d.")] = "24h",
    priority: Annotated[int, typer.Option(min=-100, max=100, help="Higher goes first.")] = 0,
    on_invalid: Annotated[str, typer.Option(help="Bad lines: skip or fail.")] = "skip",
    dedupe: Annotated[
        Dedupe, typer.Option(help="Compute equal lines once: in each job, or over the project.")
    ] = Dedupe.OFF,
    max_cost: Annotated[
        str | None, typer.Option(help="Pause each job before it is billed more, such as 2.50.")
    ] = None,
    on_budget: Annotated[
        str, typer.Option(help="A job that will not fit its limits: refuse it, or pause it then.")
    ] = "refuse",
    run_hours: RunHoursText = None,
    job_tag: Annotated[
        list[str], typer.Option(help="What its jobs are for; may be repeated.")
    ] = [],  # noqa: B006
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Make a schedule with one of three inputs."""
    with acting_for(project, data_dir) as acting:
        terms = Terms(
            name,
            cron,
            endpoint,
            zone=zone,
            catch_up=catch_up,
            overlap=overlap,
            input_file_id=None if file is None else _file_id(file),
            input_tag=tag,
            input_path=path,
            output_path=output,
            completion_window=window,
            priority=priority,
            on_invalid=on_invalid,
            dedupe=dedupe,
            max_cost_nano=None if max_cost is None else read_amount(max_cost, "--max-cost"),
            on_budget=on_budget,
            run_hours=run_hours,
            tags=tuple(job_tag),
        )
        keeper = Keeper(acting.caller, acting.runtime.settings.stores)
        made = schedules.create_schedule(acting.session, keeper, terms)
    _show(made, as_json)


@app.command("ls")
def list_all(
    project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """List a project's schedules with their next times and last outcomes."""
    with acting_for(project, data_dir) as acting:
        found = schedules.list_schedules(acting.session, acting.project_id)
    if as_json:
        print_json([_shown(schedule) for schedule in found])
        return
    rows = [
        (
            schedule.terms.name,
            schedule.words,
            schedule.terms.zone,
            schedule.state,
            _local(schedule, 0),
            schedule.last_run and schedule.last_run.outcome,
        )
        for schedule in found
    ]
    print_table(("schedule", "when", "zone", "state", "next", "last"), rows)


@app.command()
def show(
    schedule: Which, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Show a schedule with its next five times."""
    with acting_for(project, data_dir) as acting:
        found = schedules.get_schedule(acting.session, acting.project_id, _find(acting, schedule))
    _show(found, as_json)


@app.command()
def pause(
    schedule: Which, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Start nothing more; what has begun goes on."""
    with acting_for(project, data_dir) as acting:
        wanted = _find(acting, schedule)
        found = schedules.pause_schedule(acting.session, acting.project_id, wanted)
    _show(found, as_json)


@app.command()
def resume(
    schedule: Which, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Go on with the next planned time."""
    with acting_for(project, data_dir) as acting:
        wanted = _find(acting, schedule)
        found = schedules.resume_schedule(acting.session, acting.project_id, wanted)
    _show(found, as_json)


@app.command()
def run(
    schedule: Which, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """Ask for a run now; a CPU worker starts it."""
    with acting_for(project, data_dir) as acting:
        wanted = _find(acting, schedule)
        asked = schedule_runs.run_now(acting.session, acting.project_id, wanted)
    if as_json:
        print_json(_shown_run(asked))
    else:
        typer.echo(f"{ids.encode(ids.RUN_PREFIX, asked.id)} waits to be started.")


@app.command()
def delete(
    schedule: Which, project: Project = "default", data_dir: DataDir = None, as_json: AsJson = False
) -> None:
    """End a schedule; its jobs stay."""
    with acting_for(project, data_dir) as acting:
        wanted = _find(acting, schedule)
        schedules.delete_schedule(acting.session, acting.project_id, wanted)
    if as_json:
        print_json({"id": ids.encode(ids.SCHEDULE_PREFIX, wanted), "deleted": True})
    else:
        typer.echo(f"{schedule} is deleted.")


@app.command()
def history(
    schedule: Which,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 30,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a schedule, the latest planned first."""
    with acting_for(project, data_dir) as acting:
        wanted = _find(acting, schedule)
        page = schedule_runs.list_runs(acting.session, acting.project_id, wanted, None, limit)
    if as_json:
        print_json([_shown_run(one) for one in page.items])
        return
    rows = [
        (
            one.planned_at.strftime("%Y-%m-%d %H:%M"),
            one.trigger,
            one.outcome,
            one.job and ids.encode(ids.JOB_PREFIX, one.job.id),
            one.job and money(one.job.totals.billed_nano),
            None if one.output_state == "none" else one.output_state,
            one.reason or one.output_problem,
        )
        for one in page.items
    ]
    print_table(("planned (UTC)", "by", "outcome", "job", "billed", "output", "why"), rows)


def _find(acting: Acting, text: str) -> ScheduleId:
    """The schedule that a person means."""
    known = ids.decode(ids.SCHEDULE_PREFIX, text)
    return ScheduleId(known or schedules.schedule_named(acting.session, acting.project_id, text))


def _file_id(text: str) -> FileId:
    return FileId(ids.decode(ids.FILE_PREFIX, text) or ids.new_uuid())


def _shown(schedule: ScheduleRecord) -> dict[str, object]:
    file_id = schedule.terms.input_file_id
    terms = plain(schedule.terms)
    terms["input_file_id"] = file_id and ids.encode(ids.FILE_PREFIX, file_id)
    terms["defaults"] = (
        None if schedule.terms.defaults is None else schedule.terms.defaults.decode()
    )
    last = schedule.last_run
    return {
        **plain({"words": schedule.words, "state": schedule.state, "problem": schedule.problem}),
        **terms,
        "id": ids.encode(ids.SCHEDULE_PREFIX, schedule.id),
        "next_runs": plain(schedule.next_runs),
        "last_run": last and _shown_run(last),
    }


def _shown_run(run: RunRecord) -> dict[str, object]:
    return {
        "id": ids.encode(ids.RUN_PREFIX, run.id),
        "planned_at": run.planned_at.isoformat(),
        "trigger": run.trigger,
        "state": run.state,
        "outcome": run.outcome,
        "code": run.code,
        "reason": run.reason,
        "job_id": run.job and ids.encode(ids.JOB_PREFIX, run.job.id),
        "billed_nano": run.job and run.job.totals.billed_nano,
        "output_state": run.output_state,
        "output_problem": run.output_problem,
    }


def _local(schedule: ScheduleRecord, number: int) -> str | None:
    """One of the next times, on the clock of the schedule."""
    if number >= len(schedule.next_runs):
        return None
    zone = ZoneInfo(schedule.terms.zone)
    return schedule.next_runs[number].astimezone(zone).strftime("%Y-%m-%d %H:%M %Z")


def _show(schedule: ScheduleRecord, as_json: bool) -> None:
    if as_json:
        print_json(_shown(schedule))
        return
    terms = schedule.terms
    file_id = terms.input_file_id
    given = file_id and ids.encode(ids.FILE_PREFIX, file_id)
    rows = [
        ("schedule", f"{terms.name} ({ids.encode(ids.SCHEDULE_PREFIX, schedule.id)})"),
        ("when", f"{schedule.words}, {terms.zone} ({terms.cron})"),
        ("state", schedule.problem or schedule.state),
        ("input", given or terms.input_path or f"the newest file with the tag {terms.input_tag}"),
        ("output", terms.output_path),
        ("rules", f"catch up: {terms.catch_up}; overlap: {terms.overlap}"),
        ("last", schedule.last_run and schedule.last_run.outcome),
        *(("next", _local(schedule, number)) for number in range(len(schedule.next_runs))),
    ]
    print_table(("", ""), rows)
