"""``tokenmill jobs edit``: change a job that is queued or runs."""

from typing import Annotated

import typer

from runner.cli.console import AsJson, DataDir
from runner.cli.jobs import Project, read_job_id, show_job
from runner.cli.moments import RunHoursText, StartAfter, as_moment
from runner.cli.projects import acting_for
from runner.services import job_edits
from runner.services.job_edits import JobChange


def edit(
    job: str,
    priority: Annotated[
        int | None, typer.Option(min=-100, max=100, help="Higher goes first.")
    ] = None,
    start_after: StartAfter = None,
    run_hours: RunHoursText = None,
    any_time: Annotated[
        bool, typer.Option("--any-time", help="Take the start away, and the hours.")
    ] = False,
    project: Project = "default",
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Change a job's priority or hours, while it is queued or runs."""
    clear = job_edits.CLEARABLE if any_time else frozenset()
    change = JobChange(priority, as_moment(start_after), run_hours, clear)
    with acting_for(project, data_dir) as acting:
        record = job_edits.edit_job(acting.session, acting.project_id, read_job_id(job), change)
    show_job(record, as_json)
