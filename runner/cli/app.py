"""All verbs together, and what becomes of their errors."""

import sys

import typer
from pydantic import ValidationError

from runner.cli import (
    backups,
    bench,
    budgets,
    conformance,
    costs,
    demo,
    estimate,
    job_edits,
    jobs,
    keys,
    lifecycle,
    models,
    profile,
    projects,
    retention,
    retries,
    run,
    schedules,
    webhooks,
    workers,
)
from runner.cli.console import ExitCode

app = typer.Typer(
    name="tokenmill",
    help="Batch inference: files of prompts in, accounted results out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
lifecycle.register(app)
app.command()(backups.backup)
app.command()(backups.restore)
jobs.register(app)
jobs.app.command()(job_edits.edit)
app.command()(estimate.estimate)
jobs.app.command()(retries.retry)
jobs.app.command()(retries.merged)
app.command()(run.run)
app.command()(profile.profile)
app.command()(retention.retention)
app.add_typer(projects.app, name="projects")
app.add_typer(keys.app, name="keys")
app.add_typer(budgets.app, name="budgets")
app.add_typer(models.app, name="models")
app.add_typer(webhooks.app, name="webhooks")
app.add_typer(costs.app, name="costs")
app.add_typer(schedules.app, name="schedules")
app.add_typer(workers.app, name="workers")
app.add_typer(bench.app, name="bench")
app.command()(conformance.conformance)
app.command()(demo.demo)


def main() -> None:
    """The entry point of the ``tokenmill`` command."""
    try:
        app()
    except ValidationError as error:  # of the settings, which every verb reads
        for fault in error.errors(include_url=False):
            name = ".".join(map(str, fault["loc"]))
            cause = str(fault["msg"]).removeprefix("Value error, ")
            typer.echo(f"The setting {name!r} is wrong. {cause}", err=True)
        sys.exit(ExitCode.USAGE)
