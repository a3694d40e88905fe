"""Real services for every test: one Postgres and one Valkey per run, a fresh database per test."""

import itertools
import os
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis
from psycopg import sql

from runner.embedded import EmbeddedServices, ServiceUrls

if TYPE_CHECKING:
    from runner.db.session import SessionFactory

# Without a GPU, Triton's kernels run in its interpreter: it must hear of it before it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceUrls]:
    """The addresses of services that live as long as the test run."""
    with EmbeddedServices(tmp_path_factory.mktemp("services"), fast=True) as urls:
        yield urls


@pytest.fixture(scope="session")
def template_database(services: ServiceUrls) -> str:
    """The name of a migrated database that the tests' databases are copied from."""
    from runner.db import migrate

    name = "template_of_tests"
    _execute(services, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    migrate.upgrade(_url_of(services, name))
    return name


@pytest.fixture
def database(services: ServiceUrls, template_database: str) -> Iterator[str]:
    """The address of a migrated, empty database of this test's own."""
    name = f"test_{uuid.uuid4().hex}"
    _execute(
        services,
        sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
            sql.Identifier(name), sql.Identifier(template_database)
        ),
    )
    yield _url_of(services, name)
    _execute(services, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def database_url(database: str) -> str:
    """The same address under the name that settings use."""
    return database


@pytest.fixture
def session_factory(database: str) -> "Iterator[SessionFactory]":
    """Sessions on this test's own database."""
    from runner.db.session import create_session_factory

    factory = create_session_factory(database)
    yield factory
    factory.kw["bind"].dispose()


@pytest.fixture(scope="session")
def broker_numbers() -> Iterator[int]:
    """The logical databases of the broker, handed out in turn."""
    return itertools.cycle(range(1, 64))


@pytest.fixture
def broker_url(services: ServiceUrls, broker_numbers: Iterator[int]) -> Iterator[str]:
    """The address of an empty logical database of the broker."""
    url = f"{services.broker_url.rpartition('/')[0]}/{next(broker_numbers)}"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
        yield url
        client.flushdb()


def _execute(services: ServiceUrls, statement: sql.Composed) -> None:
    address = services.database_url.replace("postgresql+psycopg://", "postgresql://", 1)
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(statement)


def _url_of(services: ServiceUrls, name: str) -> str:
    address, _, options = services.database_url.partition("?")
    return f"{address.rpartition('/')[0]}/{name}?{options}"
