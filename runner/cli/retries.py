"""``tokenmill jobs retry`` and ``jobs merged``: what has no answer once more, and all as one."""

from pathlib import Path
from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir, print_json
from runner.cli.installation import installation
from runner.cli.jobs import Project, caller_of, read_job_id, show_job
from runner.cli.projects import acting_for
from runner.services import contents, jobs, retries
from runner.services.retries import RetryLines


def retry(
    job: str,
    lines: Annotated[
        RetryLines, typer.Option(help="All without an answer, or some of them.")
    ] = RetryLines.ALL,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Run the lines of an ended job that have no answer, as a job of their own."""
    with acting_for(project, data_dir) as acting:
        shard_lines = acting.runtime.settings.shard_lines
        wanted = read_job_id(job)
        child = retries.retry_job(acting.session, acting.caller, wanted, lines, shard_lines)
    show_job(child, as_json)


def merged(
    job: str,
    output: Annotated[Path | None, typer.Option(help="Else answers go to standard output.")] = None,
    errors: Annotated[Path | None, typer.Option(help="Where lines without an answer go.")] = None,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Write the answers of a job and its retries as one; with --json, how many there are."""
    counts = {}
    with installation(data_dir) as runtime:
        caller = caller_of(runtime, project)
        with runtime.transaction() as session:
            wanted = jobs.get_job(session, caller.project_id, read_job_id(job)).id
        for view, target in ((contents.OUTPUT, output), (contents.ERROR, errors)):
            lines = retries.read_merged(runtime.sessions, wanted, view)
            if target is not None:
                with target.open("wb") as stream:
                    counts[view] = sum(1 for line in lines if stream.write(line))
            elif as_json:
                counts[view] = sum(1 for _ in lines)
            elif view == contents.OUTPUT:
                for line in lines:
                    typer.echo(line, nl=False)
    if as_json:
        print_json(counts)
