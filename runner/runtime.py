"""What one process is made of, built once at its entry point and passed on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from celery import Celery
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from runner.celery_app import create_celery, send_ring
from runner.config import Settings, arm_failpoints
from runner.db import migrate
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.errors import RunnerError
from runner.doorbell import Ring, connect_doorbell
from runner.embedded import ServiceUrls, running

logger = logging.getLogger(__name__)


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

    def close(self) -> None:
        """Give back connections."""
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
        embedded = running(settings.data_dir)
        if embedded is None:
            raise NotRunning(
                f"Nothing runs in {settings.data_dir}; start it with: "
                f"tokenmill up --data-dir {settings.data_dir}"
            )
        database_url = database_url or embedded.database_url
        broker_url = broker_url or embedded.broker_url
    return ServiceUrls(database_url, broker_url)


def open_runtime(settings: Settings) -> Runtime:
    """Connect one process to its services."""
    arm_failpoints(settings)
    urls = find_services(settings)
    celery = create_celery(urls.broker_url, settings.tick_seconds)
    sessions = create_session_factory(urls.database_url)
    connect_doorbell(sessions, partial(_ring_softly, celery))
    return Runtime(settings, urls, sessions, celery)


def _ring_softly(celery: Celery, ring: Ring) -> None:
    """Send a ring; a broker that is down costs a log line, for the database remembers."""
    try:
        send_ring(celery, ring)
    except Exception as error:  # whatever the transport raises, the commit has happened
        logger.warning("A doorbell was not delivered: %s", error, extra={"action": "ring_lost"})
