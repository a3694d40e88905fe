"""The schema: migrated up and down, equal to the models, and refusing what must never be."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from databases import new_database
from sqlalchemy import delete, func, insert, inspect, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from workshop import Workshop, make_item, make_items

from runner.config import Settings
from runner.db import migrate
from runner.db.models import AuditEntry, Base, Job, JobModel, Shard, Usage, Worker, WorkItem
from runner.db.partitions import (
    PARTITIONED_TABLES,
    WEEKS_AHEAD,
    ensure_partitions,
    is_partition,
    present_weeks,
)
from runner.db.session import SessionFactory, create_database_engine, create_session_factory
from runner.domain.ids import first_uuid_at
from runner.embedded import ServiceUrls
from runner.services.reports import JobReport, job_report


@pytest.fixture
def empty_database(services: ServiceUrls) -> Iterator[str]:
    """The address of a database without a single table."""
    with new_database(services) as url:
        yield url


def _item(job_id: uuid.UUID) -> dict[str, object]:
    return {"job_id": job_id, "idx": 0, "custom_id": "a", "byte_offset": 0, "byte_length": 1}


@pytest.fixture
def template_time(session_factory: SessionFactory) -> datetime:
    """A time in the week in which the template was made: by now there may be another week."""
    with session_factory() as session:
        return present_weeks(session.connection())[-1] - timedelta(weeks=WEEKS_AHEAD)


def tables_of(database_url: str) -> set[str]:
    engine = create_database_engine(database_url)
    with engine.connect() as connection:
        found = set(inspect(connection).get_table_names())
    engine.dispose()
    return found - {"alembic_version"}


def test_the_schema_goes_up_and_down_and_up_again(empty_database: str) -> None:
    assert migrate.pending(empty_database)
    migrate.upgrade(empty_database)
    assert not migrate.pending(empty_database)
    assert {name for name in tables_of(empty_database) if not is_partition(name)} == set(
        Base.metadata.tables
    )
    migrate.downgrade(empty_database)
    assert tables_of(empty_database) == set()
    assert migrate.pending(empty_database)
    migrate.upgrade(empty_database)
    migrate.upgrade(empty_database)
    assert not migrate.pending(empty_database)


@pytest.fixture
def old_house(
    services: ServiceUrls, template_database: str, settings: Settings
) -> Iterator[Workshop]:
    """A workshop on a database whose schema is changed."""
    with new_database(services, template_database) as url:
        sessions = create_session_factory(url)
        yield Workshop(sessions, settings.model_copy(update={"database_url": url}))
        sessions.kw["bind"].dispose()


def test_jobs_of_a_former_schema_are_what_they_were_and_go_on(old_house: Workshop) -> None:
    def report(job_id: uuid.UUID) -> JobReport:
        with old_house.sessions() as session:
            return job_report(session, old_house.caller.project_id, job_id)

    refused = make_item("refused", model="org/none")
    ended = old_house.make_job([*make_items(5), refused], on_invalid="skip")
    worker_id = old_house.make_worker()
    old_house.drain(worker_id)
    running, waiting = old_house.make_job(8), old_house.make_job(3, ingested=False)
    first, second = old_house.claim(worker_id, shards=2)
    old_house.run(worker_id, [first])
    before = report(ended), old_house.job(running)
    models = old_house.rows(select(JobModel.__table__).order_by(JobModel.job_id))

    assert old_house.settings.database_url is not None
    migrate.downgrade(old_house.settings.database_url, "0018")
    migrate.upgrade(old_house.settings.database_url)
    assert (report(ended), old_house.job(running)) == before
    assert old_house.rows(select(JobModel.__table__).order_by(JobModel.job_id)) == models
    old_house.run(worker_id, [second])
    assert old_house.ingest(waiting)
    old_house.drain(worker_id)
    assert [old_house.job(each).state for each in (running, waiting)] == ["completed"] * 2


def test_the_models_and_the_migrated_schema_are_the_same(session_factory: SessionFactory) -> None:
    def is_ours(name: str | None, kind: str, _parents: object) -> bool:
        return not (kind == "table" and name is not None and is_partition(name))

    with session_factory() as session:
        context = MigrationContext.configure(
            session.connection(), opts={"compare_type": True, "include_name": is_ours}
        )
        assert compare_metadata(context, Base.metadata) == []


@pytest.mark.parametrize("weeks", [0, WEEKS_AHEAD])
def test_partitions_cover_the_coming_weeks(
    session_factory: SessionFactory, template_time: datetime, weeks: int
) -> None:
    job_id = first_uuid_at(template_time + timedelta(weeks=weeks))
    with session_factory.begin() as session:
        session.execute(insert(WorkItem).values(_item(job_id)))
    beyond = first_uuid_at(template_time + timedelta(weeks=WEEKS_AHEAD + 1))
    with session_factory() as session, pytest.raises(IntegrityError, match="no partition"):
        session.execute(insert(WorkItem).values(_item(beyond)))


def test_partitions_are_made_once_and_ahead_of_time(
    session_factory: SessionFactory, template_time: datetime
) -> None:
    with session_factory() as session:
        assert ensure_partitions(session.connection(), template_time) == 0
        later = template_time + timedelta(weeks=2)
        assert ensure_partitions(session.connection(), later) == 2 * len(PARTITIONED_TABLES)
        assert ensure_partitions(session.connection(), later) == 0


def test_two_processes_take_turns_to_make_partitions(session_factory: SessionFactory) -> None:
    later = datetime.now(UTC) + timedelta(weeks=3)
    with session_factory() as one, session_factory() as other:
        other.execute(text("SET LOCAL lock_timeout = '100ms'"))
        assert ensure_partitions(one.connection(), later) > 0
        with pytest.raises(OperationalError, match="lock timeout"):
            ensure_partitions(other.connection(), later)
        one.rollback()
        other.rollback()
        assert ensure_partitions(other.connection(), later) > 0


def test_an_index_of_a_parent_is_on_every_partition(session_factory: SessionFactory) -> None:
    query = text(
        "SELECT count(*) FROM pg_class parent JOIN pg_inherits ON inhparent = parent.oid"
        " WHERE parent.relname = 'ix_shards_open'"
    )
    with session_factory() as session:
        assert session.scalar(query) == WEEKS_AHEAD + 2


@pytest.mark.parametrize("state", ["completed", "failed", "expired", "cancelled"])
def test_a_terminal_state_is_final(workshop: Workshop, state: str) -> None:
    job_id = workshop.make_job(1, ingested=False)
    workshop.execute(
        update(Job).where(Job.id == job_id).values({"state": state, f"{state}_at": func.now()})
    )
    for after in ("validating", "in_progress", "cancelling", "completed", "failed"):
        if after == state:
            continue
        with pytest.raises(IntegrityError, match=f"is {state} and cannot become {after}"):
            workshop.execute(
                update(Job)
                .where(Job.id == job_id)
                .values({"state": after, "in_progress_at": func.now(), f"{state}_at": None})
            )


def test_a_job_that_makes_no_sense_is_refused(workshop: Workshop) -> None:
    job_id = workshop.make_job(1, ingested=False)
    for values in (
        {"state": "completed"},  # without its time
        {"state": "unknown"},
        {"outcome": "failed"},
        {"on_invalid": "ask"},
        {"priority": 101},
        {"total_items": -1},
    ):
        with pytest.raises(IntegrityError, match="ck_jobs"):
            workshop.execute(update(Job).where(Job.id == job_id).values(values))


def test_a_shard_that_makes_no_sense_is_refused(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    for values in (
        {"state": "leased"},
        {"state": "leased", "worker_id": uuid.UUID(int=1)},
        {"worker_id": uuid.UUID(int=1), "lease_expires_at": func.now()},
        {"state": "done"},
        {"state": "done", "succeeded": 3},
        {"succeeded": 3, "failed": 2},
        {"failed": -1},
        {"idx": []},
        {"state": "lost"},
    ):
        with pytest.raises(IntegrityError, match="ck_shards"):
            workshop.execute(update(Shard).where(Shard.job_id == job_id).values(values))


def test_a_worker_has_an_end_exactly_when_it_has_ended(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    for values in ({"state": "dead"}, {"ended_at": func.now()}, {"kind": "tpu"}):
        with pytest.raises(IntegrityError):
            workshop.execute(update(Worker).where(Worker.id == worker_id).values(values))


def test_the_audit_trail_can_only_grow(workshop: Workshop) -> None:
    before = workshop.scalar(select(func.count()).select_from(AuditEntry))
    assert before > 0
    for statement in (update(AuditEntry).values(actor="nobody"), delete(AuditEntry)):
        with pytest.raises(IntegrityError, match="append only"):
            workshop.execute(statement)
    assert workshop.scalar(select(func.count()).select_from(AuditEntry)) == before


def test_a_line_has_one_result_and_one_ledger_row(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    workshop.drain()
    row = workshop.usage(job_id)[0]
    again = {column.name: getattr(row, column.name) for column in Usage.__table__.columns}
    with pytest.raises(IntegrityError, match="usage"):
        workshop.execute(insert(Usage).values(again))
    with pytest.raises(IntegrityError, match="results"):
        workshop.execute(
            text("INSERT INTO results VALUES (:job, 0, false, 1, '{{}}')").bindparams(job=job_id)
        )
