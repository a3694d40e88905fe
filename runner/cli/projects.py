"""``tokenmill projects``, and what verbs about things of a project share: acting for it, and
reading ids."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

import typer
from sqlalchemy.orm import Session

from runner.cli.console import AsJson, DataDir, age, print_json, print_table
from runner.cli.installation import installation
from runner.domain import ids
from runner.domain.errors import NotFound
from runner.domain.ids import ProjectId
from runner.runtime import Runtime
from runner.services import projects
from runner.services.keys import Caller
from runner.services.projects import MAX_WEIGHT, ProjectRecord

app = typer.Typer(
    help="Projects: who owns files, jobs and keys, and how devices are shared.",
    no_args_is_help=True,
)


@dataclass(frozen=True, slots=True)
class Acting:
    """A transaction of an installation, and for whom it is."""

    runtime: Runtime
    session: Session
    caller: Caller

    @property
    def project_id(self) -> ProjectId:
        return self.caller.project_id


@contextmanager
def acting_for(project: str, data_dir: DataDir) -> Iterator[Acting]:
    """One transaction for a project that exists."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        yield Acting(runtime, session, Caller(projects.find_project(session, project)))


def read_id(prefix: str, text: str, what: str, shown_by: str) -> UUID:
    """What an outer id names; ``shown_by`` is the verb that lists such ids."""
    value = ids.decode(prefix, text)
    if value is None:
        raise NotFound(f"{text!r} is not a {what}'s id; see: tokenmill {shown_by}.")
    return value


def register(parent: typer.Typer) -> None:
    """Add the group to the command line."""
    parent.add_typer(app, name="projects")


@app.command("ls")
def list_all(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List projects, with the weight of each in the sharing of devices."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        records = projects.list_projects(session)
    if as_json:
        print_json([_shown(record) for record in records])
        return
    rows = [(one.name, one.weight, age(one.created_at), _id(one)) for one in records]
    print_table(("project", "weight", "created", "id"), rows)


@app.command()
def create(name: str, data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """Make a project; `keys create --project NAME` then makes a key for it."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        record = projects.create_project(session, name)
    _show(record, as_json)


@app.command()
def weight(
    name: str,
    weight: Annotated[
        int, typer.Argument(min=1, max=MAX_WEIGHT, help="Twice as much is twice the device time.")
    ],
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Give a project another weight in the sharing of devices, for whatever is leased next."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        record = projects.set_weight(session, name, weight)
    _show(record, as_json)


def _show(record: ProjectRecord, as_json: bool) -> None:
    if as_json:
        print_json(_shown(record))
    else:
        typer.echo(f"{record.name}: weight {record.weight}, {_id(record)}")


def _shown(record: ProjectRecord) -> dict[str, object]:
    return {
        "id": _id(record),
        "name": record.name,
        "weight": record.weight,
        "created_at": record.created_at,
    }


def _id(record: ProjectRecord) -> str:
    return ids.encode(ids.PROJECT_PREFIX, record.id)
