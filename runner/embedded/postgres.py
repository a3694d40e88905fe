"""The embedded Postgres server: how it is started, adopted and stopped."""

import shutil
import signal
import stat
import tempfile
import time
from pathlib import Path
from threading import Event

import psutil
import psycopg
from psycopg import sql

from runner.embedded.account import Account, account_for
from runner.embedded.binaries import find_postgres
from runner.embedded.cluster import Cluster, reachable
from runner.embedded.errors import EmbeddedError, StartCancelled
from runner.embedded.process import ServerProcess, ServerSlot
from runner.embedded.secret import read_or_create_secret

ROLE = "tokenmill"
DATABASE = "tokenmill"

Connection = psycopg.Connection[tuple[object, ...]]

# Fast shutdown first; immediate shutdown costs only a recovery at the next start.
_STOP_STEPS = ((signal.SIGINT, 60.0), (signal.SIGQUIT, 10.0))
# Recovery after a crash may have to replay max_wal_size of log.
_READY_SECONDS = 300.0
_POLL_SECONDS = 0.03
_SOCKET_PARENT = Path("/tmp")
_SOCKET_PREFIX = "tokenmill-"


class Postgres:
    """The server of ``data_dir/postgres``, reached by a unix socket in a private folder.

    Our role owns the database and may create others, but is no superuser: what it can be made to
    run reaches no file of the host.
    """

    name = "postgres"

    def __init__(self, data_dir: Path, fast: bool = False) -> None:
        self._cluster = Cluster(data_dir / "postgres", fast)
        self._secrets = data_dir / "secrets"
        self._server: ServerProcess | None = None
        self._socket_dir: Path | None = None
        self._slot = ServerSlot(
            self._cluster.home,
            data_dir / "run" / "postgres.lock",
            data_dir / "logs" / "postgres.log",
            _is_postmaster,
        )

    @property
    def url(self) -> str:
        """The address for SQLAlchemy with psycopg 3; it holds the password."""
        password = read_or_create_secret(self._secrets / ROLE)
        return f"postgresql+psycopg://{ROLE}:{password}@:5432/{DATABASE}?host={self._socket_dir}"

    @property
    def pid(self) -> int | None:
        return self._server.pid if self._server else None

    def occupied(self) -> bool:
        """Whether a server lives in this data directory, whoever started it."""
        return self._slot.occupied()

    def alive(self) -> bool:
        return self._server is not None and self._server.alive()

    def start(self, cancelled: Event) -> None:
        """Adopt the healthy server that already runs here, or start one; return when it answers."""
        if self.alive():
            return
        self._server = None
        if self._slot.occupied() and self._adopt(cancelled):
            return
        account = account_for(self._cluster.home)
        major = self._cluster.major()
        binaries = find_postgres(account, major)
        if major is None:
            self._cluster.create(binaries, account, self._owner_password())
        former = self._socket_dir or self._cluster.recorded_socket_dir()
        self._socket_dir = _private_socket_dir(former, account)
        self._cluster.forget_reused_pid()
        with reachable(self._cluster.home, account) as (path, descriptors):
            command = self._cluster.command(binaries, path, self._socket_dir)
            self._server = self._slot.spawn(command, account, descriptors=descriptors)
        try:
            self._prepare(cancelled)
        except BaseException:
            # The folder stays until ``stop``: the next try is to have the address that others know.
            self._halt()
            raise

    def stop(self) -> None:
        """Shut down and return when the last process of the server is gone."""
        socket_dir = self._socket_dir or self._cluster.recorded_socket_dir()
        self._halt()
        # The path may come from a file that the server's account can write.
        if socket_dir is not None and _is_socket_dir(socket_dir):
            shutil.rmtree(socket_dir, ignore_errors=True)
        self._socket_dir = None

    def _halt(self) -> None:
        """End the server that lives here, whoever started it."""
        self._slot.vacate(self._server, _STOP_STEPS)
        self._server = None

    def _adopt(self, cancelled: Event) -> bool:
        """Take over an orphan of an earlier launcher; stop it instead where it does not answer."""
        self._server = self._slot.occupant()
        self._socket_dir = self._cluster.recorded_socket_dir() or self._socket_dir
        if self._server is not None and self._socket_dir is not None:
            try:
                self._prepare(cancelled)
            except StartCancelled:
                raise
            except EmbeddedError:
                pass
            else:
                return True
        self._halt()
        return False

    def _prepare(self, cancelled: Event) -> None:
        """Wait until the server answers, then make sure of our role and database."""
        with self._connect(cancelled) as connection:
            _ensure_role(connection, read_or_create_secret(self._secrets / ROLE))
            _ensure_database(connection)
            _compress_wal(connection)

    def _connect(self, cancelled: Event) -> Connection:
        """A connection as the cluster's owner; while recovery runs the server refuses (57P03)."""
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            try:
                return psycopg.connect(
                    host=str(self._socket_dir),
                    port=5432,
                    user="postgres",
                    password=self._owner_password(),
                    dbname="postgres",
                    connect_timeout=5,
                    autocommit=True,
                )
            except psycopg.OperationalError as error:
                self._check_patience(error, deadline, cancelled)
            time.sleep(_POLL_SECONDS)

    def _check_patience(self, error: Exception, deadline: float, cancelled: Event) -> None:
        if cancelled.is_set():
            raise StartCancelled("The start of Postgres was given up.")
        if "password authentication failed" in str(error):
            raise EmbeddedError(
                f"The password in {self._secrets / 'postgres'} is not the one of the database in "
                f"{self._cluster.home}. Put the file back from a backup."
            ) from error
        if not self.alive() or time.monotonic() > deadline:
            raise EmbeddedError(
                f"Postgres did not start; its log {self._slot.log_path} ends with:\n"
                f"{self._slot.tail()}"
            ) from error

    def _owner_password(self) -> str:
        return read_or_create_secret(self._secrets / "postgres")


def _ensure_role(connection: Connection, password: str) -> None:
    role = sql.Identifier(ROLE)
    query = "SELECT 1 FROM pg_roles WHERE rolname = %s"
    if connection.execute(query, [ROLE]).fetchone() is None:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB").format(role))
    # Every time: a lost password file heals by itself.
    change = sql.SQL("ALTER ROLE {} PASSWORD {}").format(role, sql.Literal(password))
    connection.execute(change)


def _ensure_database(connection: Connection) -> None:
    query = "SELECT 1 FROM pg_database WHERE datname = %s"
    if connection.execute(query, [DATABASE]).fetchone() is None:
        names = sql.Identifier(DATABASE), sql.Identifier(ROLE)
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*names))


def _compress_wal(connection: Connection) -> None:
    """Turn lz4 on where the build has it; given as an argument it would stop the others' start."""
    query = "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'wal_compression'"
    if connection.execute(query).fetchone() == (True,):
        connection.execute("ALTER SYSTEM SET wal_compression = 'lz4'")
        connection.execute("SELECT pg_reload_conf()")


def _is_postmaster(process: psutil.Process) -> bool:
    """The main process keeps its command line; its backends rename themselves ``postgres: ...``."""
    command = process.cmdline()
    return bool(command) and Path(command[0]).name == "postgres"


def _private_socket_dir(former: Path | None, account: Account) -> Path:
    """A short folder that only the account can enter; the former one again while it is intact.

    A unix socket's path is limited to about 100 bytes, which a data directory may well exceed.
    """
    if former is not None and _is_socket_dir(former) and former.lstat().st_uid == account.uid:
        return former
    folder = Path(tempfile.mkdtemp(prefix=_SOCKET_PREFIX, dir=_SOCKET_PARENT))
    account.own(folder)
    return folder


def _is_socket_dir(path: Path) -> bool:
    if path.parent != _SOCKET_PARENT or not path.name.startswith(_SOCKET_PREFIX):
        return False
    try:
        seen = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISDIR(seen.st_mode) and stat.S_IMODE(seen.st_mode) == 0o700
