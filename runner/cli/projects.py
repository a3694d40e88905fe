"""What verbs about things of a project share: acting for it, and reading ids."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy.orm import Session

from runner.cli.console import DataDir, installation
from runner.domain import ids
from runner.domain.errors import NotFound
from runner.domain.ids import ProjectId
from runner.runtime import Runtime
from runner.services import keys
from runner.services.keys import Caller


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
    """One transaction for a project, which is made if it is new."""
    with installation(data_dir) as runtime, runtime.transaction() as session:
        yield Acting(runtime, session, Caller(keys.ensure_project(session, project)))


def read_id(prefix: str, text: str, what: str, shown_by: str) -> UUID:
    """What an outer id names; ``shown_by`` is the verb that lists such ids."""
    value = ids.decode(prefix, text)
    if value is None:
        raise NotFound(f"{text!r} is not a {what}'s id; see: tokenmill {shown_by}.")
    return value
