"""The embedded Valkey: the broker that carries doorbells, and nothing that must be kept."""

import signal
import socket
import time
from pathlib import Path
from threading import Event

import psutil
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from runner.embedded.account import account_for
from runner.embedded.binaries import find_valkey
from runner.embedded.errors import EmbeddedError, StartCancelled
from runner.embedded.process import ServerProcess, ServerSlot
from runner.embedded.secret import read_or_create_secret, write_private

_HOST = "127.0.0.1"
_STOP_STEPS = ((signal.SIGTERM, 5.0), (signal.SIGKILL, 5.0))
_READY_SECONDS = 30.0
_ANSWER_SECONDS = 2
_POLL_SECONDS = 0.02
_PORT_ATTEMPTS = 5


class Valkey:
    """One server on a free loopback port, asking for a password and keeping nothing on disk.

    Every message can be sent again from the database, so persistence would only add ways to fail:
    a full disk would make the broker refuse to carry doorbells.
    """

    name = "valkey"

    def __init__(self, data_dir: Path) -> None:
        self._home = data_dir / "valkey"
        self._secret_path = data_dir / "secrets" / "valkey"
        self._port_path = data_dir / "run" / "valkey.port"
        self._server: ServerProcess | None = None
        self._slot = ServerSlot(
            self._home,
            data_dir / "run" / "valkey.lock",
            data_dir / "logs" / "valkey.log",
            _is_server,
        )

    @property
    def url(self) -> str:
        """The address for Celery and redis-py; it holds the password."""
        password = read_or_create_secret(self._secret_path)
        return f"redis://:{password}@{_HOST}:{self._port()}/0"

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
        if self._slot.occupied():
            self._server = self._slot.occupant()
            if self._server is not None and answers(self.url):
                return
            self.stop()
        for _ in range(_PORT_ATTEMPTS):
            self._spawn()
            if self._became_ready(cancelled):
                return
            # Somebody took the port between our look and the server's: try another.
            self._port_path.unlink(missing_ok=True)
        raise EmbeddedError(
            f"Valkey did not start; its log {self._slot.log_path} ends with:\n{self._slot.tail()}"
        )

    def stop(self) -> None:
        """Stop and return when the server is gone."""
        self._slot.vacate(self._server, _STOP_STEPS)
        self._server = None

    def _spawn(self) -> None:
        account = account_for(self._home)
        self._home.mkdir(mode=0o700, exist_ok=True)
        account.own(self._home)
        write_private(self._port_path, str(_free_port(self._port())))
        # Through stdin, so that the password is in no command line.
        command = [str(find_valkey(account)), "-"]
        self._server = self._slot.spawn(command, account, stdin=self._configuration().encode())

    def _became_ready(self, cancelled: Event) -> bool:
        deadline = time.monotonic() + _READY_SECONDS
        while not answers(self.url):
            if cancelled.is_set():
                self.stop()
                raise StartCancelled("The start of Valkey was given up.")
            if time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(
                    f"Valkey did not answer within {_READY_SECONDS:g} s; its log "
                    f"{self._slot.log_path} ends with:\n{self._slot.tail()}"
                )
            if not self.alive():
                return False
            time.sleep(_POLL_SECONDS)
        return self.alive()

    def _configuration(self) -> str:
        return "\n".join(
            (
                f"bind {_HOST}",
                f"port {self._port()}",
                f"requirepass {read_or_create_secret(self._secret_path)}",
                'save ""',
                "appendonly no",
                "maxmemory-policy noeviction",
                "databases 64",
                "daemonize no",
                'pidfile ""',
                "",
            )
        )

    def _port(self) -> int:
        """The port of the last start; a restart keeps it, so clients reconnect by themselves."""
        return int(self._port_path.read_text()) if self._port_path.exists() else 0


def answers(url: str) -> bool:
    """Whether the broker at this address takes our password and answers a ping."""
    once = Retry(NoBackoff(), retries=0)
    client = redis.Redis.from_url(
        url, socket_connect_timeout=_ANSWER_SECONDS, socket_timeout=_ANSWER_SECONDS, retry=once
    )
    try:
        return bool(client.ping())
    except redis.RedisError:
        return False
    finally:
        client.close()


def _is_server(process: psutil.Process) -> bool:
    return process.name() in ("valkey-server", "redis-server")


def _free_port(preferred: int) -> int:
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EmbeddedError("No free loopback port was found for Valkey.")
