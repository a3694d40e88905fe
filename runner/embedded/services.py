"""The database and the broker of one data directory, started together where none are given."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event
from types import TracebackType

import psycopg

from runner.embedded.errors import EmbeddedError
from runner.embedded.log_file import rotate
from runner.embedded.postgres import Postgres
from runner.embedded.secret import write_private
from runner.embedded.valkey import Valkey, answers

_ANSWER_SECONDS = 3


@dataclass(frozen=True)
class ServiceUrls:
    """Where the database and the broker are; both addresses hold passwords."""

    database_url: str
    broker_url: str


class EmbeddedServices:
    """Starts what has no address yet: an address that is given is passed through untouched.

    ``start`` may be called again at any time: it adopts what runs and starts what died; a service
    that an earlier launcher left here, and that an address now stands for, is stopped. ``fast``
    trades the safety of the data against a crash of the machine for speed, for tests.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        database_url: str | None = None,
        broker_url: str | None = None,
        fast: bool = False,
    ) -> None:
        self._data_dir = data_dir.expanduser().resolve()
        self._database_url = database_url
        self._broker_url = broker_url
        self._postgres = Postgres(self._data_dir, fast)
        self._valkey = Valkey(self._data_dir)

    def __enter__(self) -> ServiceUrls:
        try:
            return self.start()
        except BaseException:
            # One service may have come up before the other failed.
            self.stop()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, cancelled: Event | None = None) -> ServiceUrls:
        """Start or adopt the services; setting ``cancelled`` from another thread gives up."""
        cancelled = cancelled or Event()
        prepare_data_dir(self._data_dir)
        with self._one_at_a_time():
            for server in self._unused():
                if server.occupied():
                    server.stop()
            for server in self._servers():
                if not server.alive():
                    rotate(self._data_dir / "logs" / f"{server.name}.log")
                server.start(cancelled)
            urls = self._urls()
            write_private(_state_path(self._data_dir), json.dumps(asdict(urls)))
        return urls

    def stop(self) -> None:
        """Stop the services of this data directory, whoever started them."""
        if not (self._data_dir / "run").is_dir():
            return
        with self._one_at_a_time():
            for server in (self._valkey, self._postgres):
                server.stop()
            _state_path(self._data_dir).unlink(missing_ok=True)

    def occupied(self) -> bool:
        """Whether any of the services lives in this data directory, whoever started it."""
        return self._postgres.occupied() or self._valkey.occupied()

    def pids(self) -> dict[str, int | None]:
        """The process of each service that is ours; None for one that is dead."""
        return {server.name: server.pid if server.alive() else None for server in self._servers()}

    def _servers(self) -> "list[Postgres | Valkey]":
        """Those that are to run here, in the order of their start."""
        postgres: list[Postgres | Valkey] = [] if self._database_url else [self._postgres]
        return postgres if self._broker_url else [*postgres, self._valkey]

    def _unused(self) -> "list[Postgres | Valkey]":
        """Those in whose place an address was given."""
        used = self._servers()
        return [server for server in (self._postgres, self._valkey) if server not in used]

    def _urls(self) -> ServiceUrls:
        return ServiceUrls(
            self._database_url or self._postgres.url, self._broker_url or self._valkey.url
        )

    @contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        """Two launchers on one data directory take turns, so the second adopts."""
        handle = os.open(self._data_dir / "run" / "services.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def prepare_data_dir(data_dir: Path) -> None:
    """Make the folders of a data directory; what is made is closed to other users."""
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for folder in ("run", "logs", "secrets"):
        (data_dir / folder).mkdir(mode=0o700, exist_ok=True)


def running(data_dir: Path) -> ServiceUrls | None:
    """The services that answer for this data directory now, or None."""
    urls = recorded(data_dir)
    if urls is None or not answers(urls.broker_url) or not database_answers(urls.database_url):
        return None
    return urls


def recorded(data_dir: Path) -> ServiceUrls | None:
    """The addresses of the last start; nothing says that anybody still answers there."""
    try:
        state = json.loads(_state_path(data_dir.expanduser().resolve()).read_text())
        return ServiceUrls(state["database_url"], state["broker_url"])
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise EmbeddedError(f"{data_dir} belongs to another user: {error}") from error


def database_answers(database_url: str) -> bool:
    """Whether a connection to the database can be made now."""
    try:
        psycopg.connect(
            database_url.replace("postgresql+psycopg://", "postgresql://", 1),
            connect_timeout=_ANSWER_SECONDS,
        ).close()
    except psycopg.OperationalError:
        return False
    return True


def _state_path(data_dir: Path) -> Path:
    return data_dir / "run" / "services.json"
