"""Projects: the tenants of an installation, each with a weight in the sharing of devices."""

from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import Project
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import ProjectId, new_uuid
from runner.services.audit import record

DEFAULT_PROJECT = "default"
MAX_WEIGHT = 100
_NAME_LETTERS = 100
_NAMES_TOLD = 3


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """What may be shown of a project."""

    id: ProjectId
    name: str
    weight: int
    created_at: datetime


def create_project(session: Session, name: str) -> ProjectRecord:
    """Make a project.

    Raises:
        InvalidRequest: the name cannot be one.
        StateConflict: there is a project of that name.
    """
    if _id_of(session, name) is not None:
        raise StateConflict(f"There is a project {name!r} already.", param="name")
    ensure_project(session, name)
    return get_project(session, name)


def ensure_project(session: Session, name: str) -> ProjectId:
    """The project of that name, made if there is none."""
    if not 1 <= len(name) <= _NAME_LETTERS or not name.isprintable():
        raise InvalidRequest(
            f"A project's name has 1 to {_NAME_LETTERS} printable characters.", param="name"
        )
    statement = insert(Project).values(id=new_uuid(), name=name).on_conflict_do_nothing()
    made = session.scalar(statement.returning(Project.id))
    if made is not None:
        record(session, "project.create", str(made), project_id=made)
        return ProjectId(made)
    return ProjectId(session.scalars(select(Project.id).where(Project.name == name)).one())


def find_project(session: Session, name: str) -> ProjectId:
    """The project of that name; only the default one is made if it is not there.

    Raises:
        NotFound: there is none; the sentence names those that are called much alike.
    """
    found = _id_of(session, name)
    if found is not None:
        return found
    if name == DEFAULT_PROJECT:
        return ensure_project(session, name)
    names = session.scalars(select(Project.name).order_by(Project.name)).all()
    near = get_close_matches(name, names, n=_NAMES_TOLD)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    raise NotFound(
        f"There is no project {name[:_NAME_LETTERS]!r}.{hint} See: tokenmill projects ls. "
        "A new one is made by: tokenmill projects create NAME.",
        param="project",
    )


def get_project(session: Session, name: str) -> ProjectRecord:
    """The record of the project of that name."""
    return _record_of(session.get_one(Project, find_project(session, name), populate_existing=True))


def list_projects(session: Session) -> list[ProjectRecord]:
    """All projects by name."""
    return [_record_of(row) for row in session.scalars(select(Project).order_by(Project.name))]


def set_weight(session: Session, name: str, weight: int) -> ProjectRecord:
    """Give a project another weight: of two, twice the weight has twice the device time.

    It holds for whatever is leased from now on.
    """
    if not 1 <= weight <= MAX_WEIGHT:
        raise InvalidRequest(f"A weight is between 1 and {MAX_WEIGHT}.", param="weight")
    row = session.get_one(Project, find_project(session, name))
    before, row.weight = row.weight, weight
    detail = {"from": before, "to": weight}
    record(session, "project.weight", str(row.id), project_id=row.id, detail=detail)
    session.flush()
    return _record_of(row)


def _id_of(session: Session, name: str) -> ProjectId | None:
    found = session.scalar(select(Project.id).where(Project.name == name))
    return None if found is None else ProjectId(found)


def _record_of(row: Project) -> ProjectRecord:
    return ProjectRecord(ProjectId(row.id), row.name, row.weight, row.created_at)
