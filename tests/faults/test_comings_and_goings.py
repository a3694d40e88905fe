"""A whole installation is stopped or killed under load, fills its disk, and goes on afterwards."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import psycopg
import pytest
from fire import LEASE_SECONDS, SLOW_STUB, Fire, Home, attempts, job_id_of
from installation import STOP_SECONDS, Server, eventually, run_cli
from openai import InternalServerError
from sqlalchemy import func, select

from runner.config import load_settings
from runner.db.models import Usage
from runner.db.session import SessionFactory, create_session_factory
from runner.embedded import recorded
from runner.supervisor.errors import SupervisorError
from runner.supervisor.port import usable_port

LINES = 90
SETTINGS = {"TOKENMILL_LEASE_SECONDS": str(LEASE_SECONDS)}


def lasting_port() -> int:
    """A free port below those that the system gives to connections: nobody takes it between two
    starts."""
    first = 20_000 + os.getpid() % 10_000
    for port in range(first, first + 1_000):
        with suppress(SupervisorError):
            return usable_port("127.0.0.1", port)
    raise AssertionError("no port is free")


@dataclass
class House:
    """An installation that is started again and again, always on the same port."""

    data_dir: Path
    key: str
    port: int = field(default_factory=lasting_port)
    process: "subprocess.Popen[str] | None" = None
    opened: list[SessionFactory] = field(default_factory=list)

    def up(self, **environment: str) -> Fire:
        """Start it and wait until it is ready."""
        command = [sys.executable, "-m", "runner.cli", "up", "--port", str(self.port), "--json"]
        command += ["--data-dir", str(self.data_dir), "--model", SLOW_STUB]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | SETTINGS | environment
        )
        assert self.process.stdout is not None
        ready = self.process.stdout.readline()
        assert ready, "the installation did not start"
        return Fire(Server(self.data_dir, json.loads(ready)["url"], self.key), LINES)

    def end(self, number: signal.Signals) -> int:
        """Send the supervisor a signal; its exit status."""
        assert self.process is not None
        self.process.send_signal(number)
        status = self.process.wait(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None
        return status

    def pids(self) -> list[int]:
        """Every process of the tree."""
        assert self.process is not None
        family = psutil.Process(self.process.pid).children(recursive=True)
        return [process.pid for process in family]

    def sessions(self) -> SessionFactory:
        """Sessions on its database, whose address outlives a restart."""
        urls = recorded(load_settings(self.data_dir).data_dir)
        assert urls is not None
        self.opened.append(create_session_factory(urls.database_url, pool_size=1))
        return self.opened[-1]


MakeHouse = Callable[[Path], House]


@pytest.fixture
def make_house(home: Home) -> Iterator[MakeHouse]:
    """Makes installations with a slow stub; all are gone after the test."""
    made: list[House] = []

    def make_house(data_dir: Path) -> House:
        home.copy_to(data_dir)
        made.append(House(data_dir, home.key))
        return made[-1]

    yield make_house
    for house in made:
        for sessions in house.opened:
            sessions.kw["bind"].dispose()
        if house.process is not None:
            assert house.end(signal.SIGINT) == 0
        else:
            run_cli(house.data_dir, "down", check=False)


def workers_of(sessions: SessionFactory, batch_id: str) -> int:
    """How many workers have answered lines of a job."""
    query = select(func.count(Usage.worker_id.distinct()))
    with sessions() as session:
        return session.scalar(query.where(Usage.job_id == job_id_of(batch_id))) or 0


def test_what_is_stopped_or_killed_under_load_goes_on_where_it_was(
    tmp_path: Path, make_house: MakeHouse
) -> None:
    house = make_house(tmp_path / "data")
    fire = house.up()
    batch_id = fire.begin()
    pids = house.pids()
    assert house.end(signal.SIGTERM) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)

    fire = house.up()
    sessions = house.sessions()
    eventually(lambda: workers_of(sessions, batch_id) == 2)  # it goes on
    assert attempts(sessions, batch_id) == 1  # what was not done had been given back unharmed
    assert house.end(signal.SIGKILL) == -signal.SIGKILL

    # At once, on the port that the orphaned web process may still have, and without a broker.
    fire = house.up(BROKER_URL="redis://127.0.0.1:1/0")
    fire.finish(sessions, batch_id)
    fire.finish(sessions, fire.submit())
    assert attempts(sessions, batch_id) <= 2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 320 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=320m,mode=755", "tmpfs", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a small disk, and not in every container")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place: Path, leave: int) -> None:
    """Write a file that leaves so many bytes of a disk."""
    free = os.statvfs(place).f_bavail * os.statvfs(place).f_frsize
    with (place / "ballast").open("ab") as ballast:
        os.posix_fallocate(ballast.fileno(), ballast.tell(), max(1, free - leave))


def fill_to_the_last_byte(place: Path, data_dir: Path, sessions: SessionFactory) -> None:
    """Have the database write its log until it cannot; that stops it altogether."""
    password = (data_dir / "secrets" / "postgres").read_text().strip()
    host = sessions.kw["bind"].url.query["host"]
    # Connected before: a connection may have a file to write, too.
    with psycopg.connect(
        host=host, user="postgres", password=password, dbname="postgres", autocommit=True
    ) as connection:
        fill(place, leave=0)
        write = "pg_logical_emit_message(false, 'test', repeat(md5(random()::text), 30000))"
        query = f"SELECT {write} FROM generate_series(1, 500)"
        with pytest.raises(psycopg.OperationalError):
            connection.execute(query)


def test_a_full_disk_refuses_uploads_stops_the_database_and_loses_nothing(
    small_disk: Path, make_house: MakeHouse
) -> None:
    house = make_house(small_disk / "data")
    fire = house.up()
    sessions = house.sessions()
    batch_id = fire.begin()
    restarts = fire.restarts()
    fill(small_disk, leave=12 * 1024**2)  # less than the reserve
    with pytest.raises(InternalServerError) as refusal:
        fire.submit()
    assert refusal.value.status_code == 507
    assert refusal.value.code == "storage_full"
    assert int(refusal.value.response.headers["Retry-After"]) > 0
    checks = run_cli(house.data_dir, "doctor", "--port", "0", check=False)
    (found,) = (check for check in checks if check["name"] == "data directory")
    assert found["verdict"] == "problem"
    assert "uploads are refused" in found["detail"]

    fill_to_the_last_byte(small_disk, house.data_dir, sessions)
    eventually(lambda: fire.get("/readyz").status == 503)
    assert fire.get("/v1/batches").json()["error"]["code"] == "unavailable"
    assert house.process is not None
    assert house.process.poll() is None

    (small_disk / "ballast").unlink()
    eventually(lambda: fire.get("/readyz").status == 200)
    fire.finish(sessions, batch_id)
    fire.finish(sessions, fire.submit())
    after = fire.restarts()
    assert (after["engine-1"], after["web"]) == (restarts["engine-1"], restarts["web"])
