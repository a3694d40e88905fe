"""A database of its own for a benchmark, and a clock."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from runner.db import migrate
from runner.embedded import EmbeddedServices


@contextmanager
def scratch_database() -> Iterator[tuple[str, Path]]:
    """The address of an empty installation's database, and the folder that goes with it."""
    with tempfile.TemporaryDirectory() as folder, EmbeddedServices(Path(folder)) as urls:
        migrate.upgrade(urls.database_url)
        yield urls.database_url, Path(folder)


@contextmanager
def clock(name: str) -> Iterator[None]:
    """Print how long something took."""
    started = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - started:.2f} s", flush=True)
