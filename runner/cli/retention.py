"""``tokenmill retention``: how long the lines of ended jobs are kept, and what holds them."""

from collections.abc import Sequence
from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, age, plain, print_json, print_table
from runner.cli.installation import installation
from runner.services import retention as lines
from runner.services.retention import Removal, Week
from runner.services.retention_rule import FEWEST_DAYS, MOST_DAYS, Rule, read_rule, set_rule

_MEBIBYTE = 1024**2


def register(parent: typer.Typer) -> None:
    """Add ``retention`` to the command line."""
    parent.command()(retention)


def retention(
    days: Annotated[
        int | None,
        typer.Option(
            min=FEWEST_DAYS, max=MOST_DAYS, help="Keep lines so long after the end of their job."
        ),
    ] = None,
    off: Annotated[bool, typer.Option("--off", help="Keep lines for ever.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Remove what is due, without delay.")] = False,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show or change how long the lines of ended jobs are kept; they go by whole weeks.

    Jobs stay listed with their counts, costs and reports.
    """
    if off and (days is not None or now):
        raise typer.BadParameter("--off goes with neither --days nor --now.")
    removal = Removal((), ())
    with installation(data_dir) as runtime:
        if off or days is not None:
            with runtime.transaction() as session:
                set_rule(session, days)
        if now:
            removal = lines.remove_old_lines(runtime.sessions)
        with runtime.transaction() as session:
            rule, weeks = read_rule(session), lines.list_weeks(session)
    if as_json:
        print_json({**plain(rule), "weeks": plain(weeks), **plain(removal)})
    else:
        _tell(rule, removal, weeks)


def _tell(rule: Rule, removal: Removal, weeks: Sequence[Week]) -> None:
    kept = "for ever" if rule.days is None else f"for {rule.days} days after the end of their job"
    last = f"; last applied {age(rule.applied_at)}" if rule.applied_at else ""
    typer.echo(f"Lines are kept {kept}{last}.")
    for week in filter(lambda week: week.jobs, removal.removed):
        typer.echo(f"Removed: {week.lines:,} lines of {week.jobs:,} jobs, {_size(week)}.")
    held = {week.start: week.holds for week in removal.held}
    rows = [
        (
            f"{week.start:%Y-%m-%d}",
            f"{week.jobs:,}",
            f"{week.lines:,}",
            _size(week),
            _state(week, held.get(week.start, week.holds)),
        )
        for week in weeks
        if week.jobs
    ]
    if rows:
        print_table(("week from", "jobs", "lines", "size", "state"), rows)


def _size(week: Week) -> str:
    return f"{week.bytes / _MEBIBYTE:,.1f} MiB"


def _state(week: Week, holds: Sequence[str]) -> str | None:
    """Why its lines are still there, or since or from when they may go."""
    if holds:
        return f"held: {'; '.join(holds)}"
    if week.due_at is None:
        return None
    return "due" if week.is_due else f"due {week.due_at:%Y-%m-%d}"
