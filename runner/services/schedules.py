"""Schedules: making, changing, pausing and deleting them. What they bring about is elsewhere."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runner.db.models import Project, Schedule
from runner.domain.addresses import parse_address
from runner.domain.catch_up import CatchUp
from runner.domain.cron import Cron, parse_cron
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import FileId, ProjectId, new_uuid
from runner.domain.overlap import Overlap
from runner.domain.run_hours import parse_run_hours
from runner.domain.tags import check_tags
from runner.services import files
from runner.services.audit import record
from runner.services.jobs import NewJob, check_terms
from runner.services.keys import Caller
from runner.services.schedule_records import ScheduleRecord, Terms, schedule_records
from runner.services.stores import Stores

NAME_LETTERS = 100
_NO_FILE = FileId(UUID(int=0))  # which file it will be is known when a run begins
_INPUTS = ("input_file_id", "input_tag", "input_path")


@dataclass(frozen=True, slots=True)
class Keeper:
    """Who makes or changes schedules, and which folders and buckets their files may lie in."""

    caller: Caller
    roots: tuple[str, ...] = ()

    @property
    def project_id(self) -> ProjectId:
        return self.caller.project_id


def create_schedule(session: Session, keeper: Keeper, terms: Terms) -> ScheduleRecord:
    """Make a schedule; its first run is at the next time that its cron names.

    Raises:
        InvalidRequest: a field is wrong; ``param`` names it.
        StateConflict: the project has a schedule of that name.
    """
    cron = _check(session, keeper, terms)
    row = Schedule(
        id=new_uuid(),
        project_id=keeper.project_id,
        api_key_id=keeper.caller.api_key_id,
        next_at=next(cron.after(_now(session))),
    )
    _write(row, terms, cron)
    _save(session, row)
    record(session, "schedule.create", str(row.id), project_id=keeper.project_id, actor="api")
    return _shown(session, row)


def change_schedule(
    session: Session, keeper: Keeper, schedule_id: UUID, terms: Terms
) -> ScheduleRecord:
    """Give a schedule other terms; runs that are under way go on by the old ones."""
    row = find_schedule(session, keeper.project_id, schedule_id, lock=True)
    cron, former = _check(session, keeper, terms), row.input_file_id
    if row.state == "active" and (cron.text, cron.zone.key) != (row.cron, row.zone):
        row.next_at = next(cron.after(_now(session)))
    _write(row, terms, cron)
    _save(session, row)
    _let_go(session, former)
    record(session, "schedule.change", str(row.id), project_id=keeper.project_id, actor="api")
    return _shown(session, row)


def pause_schedule(session: Session, project_id: ProjectId, schedule_id: UUID) -> ScheduleRecord:
    """Start nothing more; runs that have begun go on, those that wait are left out."""
    row = find_schedule(session, project_id, schedule_id, lock=True)
    if row.state != "paused":
        row.state, row.next_at = "paused", None
        record(session, "schedule.pause", str(row.id), project_id=project_id, actor="api")
    return _shown(session, row)


def resume_schedule(session: Session, project_id: ProjectId, schedule_id: UUID) -> ScheduleRecord:
    """Go on at the next planned time; those of the pause are not made up for."""
    row = find_schedule(session, project_id, schedule_id, lock=True)
    if row.state != "active":
        cron = parse_cron(row.cron, row.zone)
        row.state, row.problem, row.next_at = "active", None, next(cron.after(_now(session)))
        record(session, "schedule.resume", str(row.id), project_id=project_id, actor="api")
    return _shown(session, row)


def delete_schedule(session: Session, project_id: ProjectId, schedule_id: UUID) -> None:
    """End a schedule; its jobs stay, and so does what they cost. Its name is free again."""
    row = find_schedule(session, project_id, schedule_id, lock=True)
    row.deleted_at, row.next_at = func.now(), None
    session.flush()
    _let_go(session, row.input_file_id)
    record(session, "schedule.delete", str(row.id), project_id=project_id, actor="api")


def get_schedule(session: Session, project_id: ProjectId, schedule_id: UUID) -> ScheduleRecord:
    """A schedule of the project."""
    return _shown(session, find_schedule(session, project_id, schedule_id))


def list_schedules(session: Session, project_id: ProjectId) -> list[ScheduleRecord]:
    """The project's schedules by name."""
    query = select(Schedule).where(Schedule.project_id == project_id, Schedule.deleted_at.is_(None))
    return schedule_records(session, session.scalars(query.order_by(Schedule.name)).all())


def schedule_named(session: Session, project_id: ProjectId, name: str) -> UUID:
    """The id of the schedule of a name, for people who type."""
    query = select(Schedule.id).where(
        Schedule.project_id == project_id, Schedule.name == name, Schedule.deleted_at.is_(None)
    )
    found = session.scalars(query).one_or_none()
    if found is None:
        raise _missing()
    return found


def name_of(session: Session, schedule_id: UUID) -> str:
    """What a schedule is called, also after its deletion."""
    return session.get_one(Schedule, schedule_id).name


def find_schedule(
    session: Session, project_id: ProjectId, schedule_id: UUID, *, lock: bool = False
) -> Schedule:
    """The row of a schedule of the project that is not deleted."""
    query = select(Schedule).where(
        Schedule.id == schedule_id,
        Schedule.project_id == project_id,
        Schedule.deleted_at.is_(None),
    )
    row = session.scalars(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise _missing()
    return row


def job_asked_for(terms: Terms, file_id: FileId = _NO_FILE, sha256: bytes = b"") -> NewJob:
    """The job of a run on a file."""
    return NewJob(
        input_file_id=file_id,
        endpoint=terms.endpoint,
        completion_window=terms.completion_window,
        request_sha256=sha256,
        metadata=terms.metadata,
        priority=terms.priority,
        on_invalid=terms.on_invalid,
        dedupe=terms.dedupe,
        defaults=terms.defaults,
        max_cost_nano=terms.max_cost_nano,
        on_budget=terms.on_budget,
        run_hours=terms.run_hours,
        tags=terms.tags,
    )


def _check(session: Session, keeper: Keeper, terms: Terms) -> Cron:
    name = terms.name
    if not 1 <= len(name) <= NAME_LETTERS or not name.isprintable() or name != name.strip():
        raise InvalidRequest(
            f"name has 1 to {NAME_LETTERS} printable characters and no spaces around.",
            param="name",
        )
    _one_of(CatchUp, terms.catch_up, "catch_up")
    _one_of(Overlap, terms.overlap, "overlap")
    check_terms(session, job_asked_for(terms))
    _check_places(session, keeper, terms)
    return parse_cron(terms.cron, terms.zone)


def _check_places(session: Session, keeper: Keeper, terms: Terms) -> None:
    given = [name for name in _INPUTS if getattr(terms, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"A schedule has exactly one of {', '.join(_INPUTS)}.",
            param=given[1] if given else _INPUTS[0],
        )
    if terms.input_file_id is not None:
        _keep_input(session, keeper, terms.input_file_id)
    if terms.input_tag is not None:
        check_tags([terms.input_tag], "input_tag")
    stores = stores_of(session, keeper.project_id, keeper.roots)
    for param in ("input_path", "output_path"):
        text = getattr(terms, param)
        if text is not None:
            stores.check(parse_address(text, param), param)


def _keep_input(session: Session, keeper: Keeper, file_id: FileId) -> None:
    try:
        row = files.visible_file(session, keeper.project_id, file_id)
    except NotFound:
        raise InvalidRequest(
            "There is no such file in this project; it may have expired or been deleted.",
            param="input_file_id",
        ) from None
    if row.purpose != files.INPUT_PURPOSE:
        raise InvalidRequest(
            f"The file's purpose is {row.purpose!r}; it must be 'batch'.", param="input_file_id"
        )
    files.keep(session, keeper.project_id, file_id)


def stores_of(session: Session, project_id: UUID, roots: tuple[str, ...]) -> Stores:
    """What a project may reach."""
    return Stores(roots, session.get_one(Project, project_id).name)


def _one_of(rule: type[CatchUp] | type[Overlap], value: str, param: str) -> None:
    if value not in list(rule):
        raise InvalidRequest(f"{param} must be one of {', '.join(rule)}.", param=param)


def _write(row: Schedule, terms: Terms, cron: Cron) -> None:
    row.name, row.cron, row.zone = terms.name, cron.text, cron.zone.key
    row.catch_up, row.overlap = terms.catch_up, terms.overlap
    row.input_file_id, row.input_tag = terms.input_file_id, terms.input_tag
    row.input_path, row.output_path = terms.input_path, terms.output_path
    row.endpoint, row.completion_window = terms.endpoint, terms.completion_window
    row.priority, row.on_invalid, row.dedupe = terms.priority, terms.on_invalid, terms.dedupe
    row.job_metadata, row.defaults = terms.metadata, terms.defaults
    row.max_cost_nano, row.on_budget = terms.max_cost_nano, terms.on_budget
    row.run_hours = None if terms.run_hours is None else str(parse_run_hours(terms.run_hours))
    row.tags = list(terms.tags)


def _save(session: Session, row: Schedule) -> None:
    name = row.name
    try:
        with session.begin_nested():
            session.add(row)
            session.flush()
    except IntegrityError:
        raise StateConflict(
            f"There is a schedule {name!r} in this project; change it, or choose another name.",
            param="name",
        ) from None


def _let_go(session: Session, file_id: UUID | None) -> None:
    """A file that no schedule reads any more lives as long as any other."""
    if file_id is None:
        return
    still = select(Schedule.id).where(
        Schedule.input_file_id == file_id, Schedule.deleted_at.is_(None)
    )
    if session.scalar(still.limit(1)) is None:
        files.let_expire(session, file_id)


def _now(session: Session) -> datetime:
    return session.scalars(select(func.now())).one()


def _shown(session: Session, row: Schedule) -> ScheduleRecord:
    session.flush()
    session.refresh(row)
    return schedule_records(session, [row])[0]


def _missing() -> NotFound:
    return NotFound("There is no such schedule in this project.", param="schedule_id")
