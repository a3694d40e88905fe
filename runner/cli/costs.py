"""``tokenmill costs``: what was spent, as a table or a file, and whether all tellings agree."""

import sys
from datetime import date, datetime
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.orm import Session

from runner.cli.console import AsJson, DataDir, money, plain, print_json, print_table
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import installation
from runner.domain import ids
from runner.services import cost_exports, projects, rollup, worker_time
from runner.services.costs import (
    DIMENSIONS,
    Scope,
    Spent,
    read_dimensions,
    spent_by,
    spent_in_all,
)

app = typer.Typer(help="What was spent, by day, project, key, model, tag, schedule or job.")

_FORMATS = ("table", *cost_exports.FORMATS)


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="costs")


@app.callback(invoke_without_command=True)
def show(
    context: typer.Context,
    by: Annotated[str, typer.Option(help=f"Of {', '.join(DIMENSIONS)}.")] = "day",
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day, UTC.")
    ] = None,
    last: Annotated[
        datetime | None, typer.Option("--to", formats=["%Y-%m-%d"], help="The last day, UTC.")
    ] = None,
    project: Annotated[str | None, typer.Option(help="Only this project.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only jobs of this tag.")] = None,
    schedule: Annotated[str | None, typer.Option(help="Only jobs of this schedule.")] = None,
    form: Annotated[str, typer.Option("--format", help=f"Of {', '.join(_FORMATS)}.")] = "table",
    output: Annotated[Path | None, typer.Option(help="Else standard output.")] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Tell what was spent; running jobs are told to a minute or so ago."""
    if context.invoked_subcommand is not None:
        return
    if form not in _FORMATS:
        raise typer.BadParameter(f"--format is one of {', '.join(_FORMATS)}.")
    with installation(data_dir) as runtime, runtime.transaction() as session:
        dimensions = read_dimensions(by)
        scope = Scope(
            project_id=None if project is None else projects.find_project(session, project),
            first=_date(first),
            last=_date(last),
            model=model,
            tag=tag,
            schedule=schedule,
        )
        groups = spent_by(session, scope, dimensions)
        total = spent_in_all(session, scope)
        file = _file(session, form, scope, groups, dimensions)
    if file is not None:
        _write(file, output)
    elif as_json:
        print_json(
            {
                "group_by": dimensions,
                "data": [_told(group, dimensions) for group in groups],
                "total": _told(total, ()),
            }
        )
    else:
        rows = [_row(group) for group in groups]
        rows.append(
            (*("in all" if n == 0 else None for n in range(len(dimensions))), *_sums(total))
        )
        print_table((*dimensions, *_COLUMNS), rows)


@app.command()
def check(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Compare the roll-up with the jobs of the last weeks; exit with 1 when they differ."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        found = rollup.differences(session)
    if as_json:
        print_json([{**plain(one), "job_id": _job(one.job_id)} for one in found])
    elif found:
        rows = [
            (
                _job(one.job_id),
                f"{one.rolled_lines} of {one.lines}",
                f"{money(one.rolled_billed_nano, 9)} of {money(one.billed_nano, 9)}",
            )
            for one in found
        ]
        print_table(("job", "lines rolled up", "billed rolled up"), rows)
    else:
        typer.echo("The roll-up is what the jobs say, to the last nano-unit.")
    if found:
        raise typer.Exit(ExitCode.FAILURES)


@app.command()
def rebuild(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make the roll-up again from the ledger, where it differs from what jobs say."""
    with installation(data_dir) as runtime:
        with runtime.transaction() as session:
            wrong = [one.job_id for one in rollup.differences(session)]
        made = 0
        for job_id in wrong:
            with runtime.transaction() as session:
                made += rollup.rebuild(session, job_id)
    if as_json:
        print_json({"differed": len(wrong), "rebuilt": made})
    else:
        typer.echo(f"{len(wrong)} jobs differed, {made} were made again from the ledger.")


@app.command()
def workers(
    first: Annotated[
        datetime | None, typer.Option("--from", formats=["%Y-%m-%d"], help="The first day, UTC.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Tell where the wall time of each engine worker went: shares of lines, idle, load, waste."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        accounts = worker_time.worker_accounts(session, _date(first))
    if as_json:
        print_json(accounts)
        return
    rows = [
        (
            ids.encode(ids.WORKER_PREFIX, one.worker_id),
            one.state,
            *(f"{us / 1e6:,.1f}" for us in (one.wall_us, one.shared_us, one.idle_us)),
            *(f"{us / 1e6:,.1f}" for us in (one.load_us, one.wasted_us)),
            f"{one.gap:.2%}",
        )
        for one in accounts
    ]
    columns = ("worker", "state", "wall s", "lines s", "idle s", "load s", "wasted s", "gap")
    print_table(columns, rows)


_COLUMNS = ("lines", "tokens in", "cached", "tokens out", "device s", "billed", "cost", "margin")


def _sums(group: Spent) -> tuple[object, ...]:
    return (
        group.lines,
        group.prompt_tokens,
        group.cached_tokens,
        group.output_tokens,
        f"{group.device_us / 1e6:,.1f}",
        *(money(nano, 9) for nano in (group.billed_nano, group.run_cost_nano, group.margin_nano)),
    )


def _row(group: Spent) -> tuple[object, ...]:
    return (*group.group, *_sums(group))


def _told(group: Spent, by: tuple[str, ...]) -> dict[str, object]:
    told = plain(group)
    told["group"] = dict(zip(by, group.group, strict=True))
    return {**told, "margin_nano": group.margin_nano}


def _file(
    session: Session, form: str, scope: Scope, groups: list[Spent], by: tuple[str, ...]
) -> bytes | None:
    match form:
        case "csv":
            return cost_exports.groups_csv(groups, by)
        case "parquet":
            return cost_exports.groups_parquet(groups, by)
        case "focus":
            return cost_exports.focus_csv(session, scope)
        case _:
            return None


def _write(content: bytes, target: Path | None) -> None:
    if target is None:
        sys.stdout.buffer.write(content)
    else:
        target.write_bytes(content)


def _date(moment: datetime | None) -> date | None:
    return None if moment is None else moment.date()


def _job(job_id: ids.JobId) -> str:
    return ids.encode(ids.JOB_PREFIX, job_id)
