"""Real services for every test: one Postgres and one Valkey per process of the run.

``pytest`` runs in one process, ``pytest -n 2`` in two that share nothing but pytest's cache.
"""

import fcntl
import itertools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis
from fuzzing import search_alike

from runner.embedded import EmbeddedServices, ServiceUrls

if TYPE_CHECKING:
    from xdist.scheduler import Scheduling

    from runner.db.session import SessionFactory

# For the engines that tests start: threads that share their cores with other work wait for each
# other most of the time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Without a GPU, Triton's kernels run in its interpreter: it must hear of it before it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
# A shell has what it starts in the background ignore Ctrl-C, and what is ignored stays so in every
# process that a test starts; a handler of ours does not. This one goes on ignoring it here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, lambda *_: None)

# Before the tests' modules are read: their searches take over what holds at that time.
search_alike()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> "Scheduling":
    """Share the tests out by whole files."""
    from distribution import WholeFiles

    return WholeFiles(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes longest where several processes work on the tests."""
    if hasattr(config, "workerinput"):
        from distribution import longest_first

        longest_first(items)


@pytest.fixture(scope="session")
def smollm2_folder(request: pytest.FixtureRequest) -> Path:
    """SmolLM2-135M-Instruct as safetensors, converted once and kept in pytest's cache."""
    from runner.config import Settings
    from runner.model_library import builtin_folder

    assert request.config.cache is not None
    data_dir = request.config.cache.mkdir("tokenmill")
    # One process of the run converts, the others wait for it.
    with (data_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return builtin_folder(Settings(data_dir=data_dir))


@pytest.fixture(scope="session")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceUrls]:
    """The addresses of services that live as long as the test run."""
    with (
        EmbeddedServices(tmp_path_factory.mktemp("services"), fast=True) as urls,
        pytest.MonkeyPatch.context() as patch,
    ):
        # The tests' own connections: a machine that stands still is no outage.
        patch.setattr("runner.db.session._CONNECT_SECONDS", 90)
        patch.setattr("runner.db.connection.PING_SECONDS", 90.0)
        yield urls


@pytest.fixture(scope="session")
def template_database(services: ServiceUrls) -> Iterator[str]:
    """The name of a migrated database that others are copied from."""
    from databases import name_of, new_database

    from runner.db import migrate

    with new_database(services) as url:
        migrate.upgrade(url)
        yield name_of(url)


@pytest.fixture(scope="session")
def shared_database(services: ServiceUrls, template_database: str) -> Iterator[str]:
    """The address of the one migrated database that the tests of this process use in turn."""
    from databases import new_database

    with new_database(services, template_database) as url:
        yield url


@pytest.fixture
def database(shared_database: str) -> Iterator[str]:
    """The address of a migrated database without rows."""
    from databases import empty

    yield shared_database
    empty(shared_database)


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
