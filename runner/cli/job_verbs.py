"""``tokenmill jobs``: the verbs of several files, under one name."""

import typer

from runner.cli import job_edits, jobs, retries


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(jobs.app, name="jobs")


for verb in (job_edits.edit, retries.retry, retries.merged):
    jobs.app.command()(verb)
