"""Installations to be hurt: one with stub models on short leases, one with the real model."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from databases import new_database
from fire import LEASE_SECONDS, SLOW_STUB, Home
from installation import Server, running_server

from runner.config import load_settings
from runner.db import migrate
from runner.db.session import SessionFactory
from runner.embedded import EmbeddedServices, ServiceUrls
from runner.model_library import BUILTIN_MODEL, add_model
from runner.runtime import open_runtime
from runner.services.keys import create_key
from runner.services.models import PriceList

SLOW_STUB_PATH = "stub:?rows=8&step_ms=30"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenarios")


@pytest.fixture(scope="session")
def crash_database(services: ServiceUrls, template_database: str) -> Iterator[str]:
    """One database for all scenarios: each has a project and a model of its own."""
    with new_database(services, template_database) as url:
        yield url


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """An installation at rest with a slow stub and a key."""
    data_dir = tmp_path_factory.mktemp("home") / "data"
    with EmbeddedServices(data_dir, fast=True) as urls:
        migrate.upgrade(urls.database_url)
        runtime = open_runtime(load_settings(data_dir))
        add_model(runtime.settings, runtime.sessions, SLOW_STUB, SLOW_STUB_PATH, PriceList())
        with runtime.sessions.begin() as session:
            key = create_key(session, "tests")[1]
        runtime.close()
    return Home(data_dir, key)


@pytest.fixture(scope="module")  # what lingers takes time from the tests of others
def stub_server(home: Home, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engine workers without weights."""
    data_dir = tmp_path_factory.mktemp("stubs") / "data"
    home.copy_to(data_dir)
    options = ("--workers", "2", "--model", SLOW_STUB)
    settings = {"lease_seconds": str(LEASE_SECONDS)}
    with running_server(data_dir, *options, key=home.key, **settings) as server:
        yield server


@pytest.fixture
def real_server(tmp_path_factory: pytest.TempPathFactory, smollm2_folder: Path) -> Iterator[Server]:
    """An installation with the built-in model."""
    data_dir = tmp_path_factory.mktemp("real")
    shutil.copytree(smollm2_folder, data_dir / "models" / BUILTIN_MODEL)
    with running_server(data_dir) as server:
        yield server


@pytest.fixture
def stub_sessions(stub_server: Server) -> Iterator[SessionFactory]:
    yield from _sessions(stub_server)


@pytest.fixture
def real_sessions(real_server: Server) -> Iterator[SessionFactory]:
    yield from _sessions(real_server)


def _sessions(server: Server) -> Iterator[SessionFactory]:
    runtime = open_runtime(load_settings(server.data_dir))
    yield runtime.sessions
    runtime.close()
