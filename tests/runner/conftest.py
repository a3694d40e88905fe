"""A workshop on real Postgres for every test: a project, a model, and factories."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from databases import empty, new_database
from workshop import Workshop

from runner.config import Settings
from runner.db.session import SessionFactory
from runner.embedded import ServiceUrls


@pytest.fixture(scope="session")
def shared_database(services: ServiceUrls, template_database: str) -> Iterator[str]:
    """The address of the one migrated database that these tests use in turn."""
    with new_database(services, template_database) as url:
        yield url


@pytest.fixture
def database(shared_database: str) -> Iterator[str]:
    """The address of a migrated database without rows."""
    yield shared_database
    empty(shared_database)


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    """Settings with small shards, so that few lines make several of them."""
    return Settings(
        data_dir=tmp_path,
        database_url=database_url,
        broker_url="redis://nobody.invalid",
        shard_lines=4,
    )


@pytest.fixture
def workshop(session_factory: SessionFactory, settings: Settings) -> Workshop:
    """A project and a model (the stub) on this test's own database."""
    return Workshop(session_factory, settings)


@pytest.fixture
def make_workshop(session_factory: SessionFactory, settings: Settings) -> Callable[..., Workshop]:
    """Makes the workshop of a test that needs other settings or another stub."""

    def make_workshop(path: str = "stub:", **changes: object) -> Workshop:
        return Workshop(session_factory, settings.model_copy(update=changes), path)

    return make_workshop
