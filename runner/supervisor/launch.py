"""Puts the plan of a real installation together: its services, its table, its database calls."""

import dataclasses
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy.exc import OperationalError, SQLAlchemyError

from runner.config import Settings, arm_failpoints
from runner.db import migrate
from runner.db.session import SessionFactory, create_session_factory
from runner.embedded import EmbeddedServices, ServiceUrls
from runner.failpoints import FailPoint, forget_marks, hit
from runner.services import workers
from runner.supervisor.errors import SupervisorError
from runner.supervisor.port import usable_port
from runner.supervisor.spec import UpOptions, process_table, remove_beat_schedule
from runner.supervisor.supervisor import Plan
from runner.supervisor.up_state import UpState, already_running, is_up, read_up_state


def make_plan(
    settings: Settings,
    options: UpOptions,
    tell: Callable[[str], None],
    on_ready: Callable[[UpState], None],
) -> Plan:
    """The plan of ``up`` for these settings; services with an address are not started."""
    # Before the port is looked at: the other supervisor may hold that too.
    if is_up(settings.data_dir):
        raise already_running(settings.data_dir)
    if not _is_held_by_remnants(settings, options.port):
        options = dataclasses.replace(options, port=usable_port(options.host, options.port))
    forget_marks(settings.failpoint_marks)
    arm_failpoints(settings)

    def prepare(urls: ServiceUrls) -> None:
        remove_beat_schedule(settings.data_dir)
        try:
            migrate.upgrade(urls.database_url)
        except OperationalError as error:
            raise SupervisorError(
                f"The database can't be prepared: {error.orig}", code="database_unreachable"
            ) from error
        if options.workers:
            # What converts models takes a while to import, and services start meanwhile.
            from runner.model_library import ensure_builtin_model  # noqa: PLC0415

            with _sessions(urls) as sessions:
                ensure_builtin_model(settings, sessions, tell)

    return Plan(
        data_dir=settings.data_dir,
        url=options.url,
        port=options.port,
        services=services_of(settings),
        table=lambda urls: process_table(settings, options, urls),
        prepare=prepare,
        report_dead=report_dead,
        tell=tell,
        on_ready=on_ready,
    )


def _is_held_by_remnants(settings: Settings, port: int) -> bool:
    """Whether a web process of a killed supervisor has the port: it is ended before ours starts."""
    state = read_up_state(settings.data_dir)
    web = state.children.get("web") if state is not None and state.port == port else None
    return web is not None and web.find() is not None


def services_of(settings: Settings) -> EmbeddedServices:
    return EmbeddedServices(
        settings.data_dir, database_url=settings.database_url, broker_url=settings.broker_url
    )


def report_dead(urls: ServiceUrls, pid: int) -> bool:
    """Give back at once what a dead worker of this host held; False while the database is down."""
    hit(FailPoint.DEATH_BEFORE_REPORT)
    try:
        with _sessions(urls) as sessions, sessions.begin() as session:
            workers.report_dead(session, host=socket.gethostname(), pid=pid)
    except SQLAlchemyError:
        return False
    return True


@contextmanager
def _sessions(urls: ServiceUrls) -> Iterator[SessionFactory]:
    factory = create_session_factory(urls.database_url, pool_size=1)
    try:
        yield factory
    finally:
        factory.kw["bind"].dispose()
