"""What one process is made of, built once at its entry point and passed on."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from celery import Celery
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from runner.celery_app import create_celery, send_ring
from runner.config import Settings, arm_failpoints
from runner.db import migrate
from runner.db.outages import outage_of
from runner.db.session import PATIENCE_SECONDS, SessionFactory, create_session_factory
from runner.domain.errors import RunnerError, StorageFull
from runner.doorbell import connect_doorbell
from runner.embedded import EmbeddedError, ServiceUrls, database_answers, free_room, recorded
from runner.inference.counters import Counters
from runner.ringer import Ringer


class NotRunning(RunnerError):
    """No service addresses are set and the embedded services are not up."""

    code = "not_running"


@dataclass(frozen=True, slots=True)
class Runtime:
    """Settings, database sessions and the broker of one process."""

    settings: Settings
    urls: ServiceUrls
    sessions: SessionFactory
    celery: Celery
    ringer: Ringer
    keeps_data: bool
    """Whether the database lies in this installation's own data directory, on this host."""
    counters: Counters = field(default_factory=Counters)
    """The tokenizers of models, each opened when it is first asked for."""

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """One transaction: committed at the end, rolled back on any error; rings follow."""
        with self.sessions.begin() as session:
            yield session

    def problems(self) -> list[str]:
        """Why this process could not serve now; empty when it can."""
        try:
            with self.sessions() as session:
                revision = migrate.current_revision(session.connection())
            if revision != migrate.head_revision():
                return ["The database schema is not up to date."]
        except SQLAlchemyError:
            return ["The database cannot be reached."]
        return []

    def outage_of(self, error: BaseException) -> RunnerError | None:
        """What to tell a caller whose request the database could not serve; None if it could."""
        return outage_of(error)

    def require_room(self, size: int) -> None:
        """Refuse what would fill the disk of the database.

        Raises:
            StorageFull: ``size`` bytes more would eat into the reserve.
        """
        # Once for the rows and once for the log that is written ahead of them.
        if self.keeps_data and free_room(self.settings.data_dir) < 2 * size:
            raise StorageFull(
                "There is too little space left for that; try again later, or delete files."
            )

    def sessions_for(self, patience_seconds: float) -> SessionFactory:
        """Sessions of their own, whose statements are given up after so long."""
        sessions = create_session_factory(self.urls.database_url, patience_seconds=patience_seconds)
        connect_doorbell(sessions, self.ringer.ring)
        return sessions

    def lone_sessions(self) -> SessionFactory:
        """Sessions that ring nobody, on connections of their own."""
        return create_session_factory(self.urls.database_url, pool_size=1)

    def close(self) -> None:
        """Send what is still to be rung, and give back connections."""
        self.ringer.close()
        engine = self.sessions.kw["bind"]
        engine.dispose()
        self.celery.close()


def find_services(settings: Settings) -> ServiceUrls:
    """The addresses of the settings, else those of the embedded services that are up.

    Raises:
        NotRunning: there are neither.
    """
    database_url, broker_url = settings.database_url, settings.broker_url
    if database_url is None or broker_url is None:
        embedded = recorded(settings.data_dir)
        # Not the broker: without it rings are lost, and nothing else is.
        if embedded is None or not database_answers(database_url or embedded.database_url):
            raise NotRunning(
                f"Nothing runs in {settings.data_dir}; start it with: "
                f"tokenmill up --data-dir {settings.data_dir}"
            )
        database_url = database_url or embedded.database_url
        broker_url = broker_url or embedded.broker_url
    return ServiceUrls(database_url, broker_url)


def open_runtime(settings: Settings, patience_seconds: float = PATIENCE_SECONDS) -> Runtime:
    """Connect one process to its services, whose statements are given up after so long."""
    arm_failpoints(settings)
    urls = find_services(settings)
    celery = create_celery(urls.broker_url, settings.tick_seconds)
    sessions = create_session_factory(urls.database_url, patience_seconds=patience_seconds)
    ringer = Ringer(partial(send_ring, celery))
    connect_doorbell(sessions, ringer.ring)
    return Runtime(settings, urls, sessions, celery, ringer, _keeps_data(settings, urls))


def _keeps_data(settings: Settings, urls: ServiceUrls) -> bool:
    with suppress(EmbeddedError):  # a data directory of another user's
        known = recorded(settings.data_dir)
        return known is not None and known.database_url == urls.database_url
    return False
