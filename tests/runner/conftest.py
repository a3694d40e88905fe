"""A workshop on real Postgres for every test: a project, a model, and factories."""

from collections.abc import Callable
from pathlib import Path

import pytest
from live_worker import hurry, quick_beats, start_worker
from timetable import Timetable
from workshop import Workshop

from runner.config import Settings
from runner.db.session import SessionFactory

__all__ = ["hurry", "quick_beats", "start_worker"]  # fixtures of any test of this folder


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


@pytest.fixture
def timetable(workshop: Workshop) -> Timetable:
    """The schedules of that project."""
    return Timetable(workshop)
