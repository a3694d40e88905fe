"""The supervisor, run as a process of its own over small real children."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE, wait_until

from runner.config import load_settings
from runner.embedded import EmbeddedServices, ServiceUrls, running
from runner.supervisor import ProcessSpec, ProcessState, Role, UpOptions, is_up, read_up_state
from runner.supervisor.backoff import HEALTHY_SECONDS, LONGEST_SECONDS, Backoff
from runner.supervisor.errors import SupervisorError
from runner.supervisor.launch import make_plan
from runner.supervisor.port import usable_port
from runner.supervisor.remnants import sweep_remnants
from runner.supervisor.spec import process_table
from runner.supervisor.up_state import UpState, write_up_state

SUPERVISE = """
import json, os, sys, time
from pathlib import Path
from runner.embedded import EmbeddedServices
from runner.supervisor import Plan, ProcessSpec, Role, Supervisor, supervisor

job = json.loads(sys.argv[1])
data_dir = Path(job["data_dir"])
given = {} if job["services"] else {"database_url": "postgresql://none", "broker_url": "redis://no"}

def say(*words):
    # In one piece: two threads may speak at once.
    sys.stdout.write(json.dumps(words) + "\\n")
    sys.stdout.flush()

def dead(urls, pid):
    say("dead", pid)
    return True

def prepare(urls):
    say("preparing")
    time.sleep(job["prepare_seconds"])

specs = [
    ProcessSpec(n, Role[r], tuple(c), dict(os.environ), g, n in job["followers"])
    for n, r, c, g in job["table"]
]
supervisor._LONGEST_FOLLOW_SECONDS = job["follow_seconds"]
Supervisor(Plan(
    data_dir=data_dir, url=f"http://127.0.0.1:{job['port']}", port=job["port"],
    services=EmbeddedServices(data_dir, fast=True, **given),
    table=lambda urls: specs, prepare=prepare,
    report_dead=dead, tell=lambda line: say("told", line),
    on_ready=lambda state: say("ready", state.url),
)).run()
"""

# Writes its name at start and at the end; given "deaf" it ignores TERM, given "fork" it forks.
CHILD = """
import os, signal, subprocess, sys, time
name, events, *ways = sys.argv[1:]
def note(what):
    with open(events, "a") as file:
        file.write(f"{what} {name} {os.getpid()}\\n")
def end(number, frame):
    note("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in ways else end)
if "fork" in ways:
    subprocess.Popen([sys.executable, __file__, name + "-fork", events, "deaf"])
note("start")
while True:
    time.sleep(0.05)
"""

Row = tuple[str, str, Sequence[str], float]


class Run:
    """One supervisor process and what it said."""

    def __init__(
        self,
        data_dir: Path,
        table: Sequence[Row],
        *,
        services: bool,
        port: int,
        prepare_seconds: float,
        followers: Sequence[str],
        follow_seconds: float,
    ) -> None:
        self.data_dir = data_dir
        job = {
            "data_dir": str(data_dir),
            "table": table,
            "services": services,
            "port": port,
            "prepare_seconds": prepare_seconds,
            "followers": followers,
            "follow_seconds": follow_seconds,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> list[list[object]]:
        """Everything said until the process ended."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return [json.loads(line) for line in output.splitlines()]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)

    def hear(self, words: str) -> None:
        """Wait until something is said with these words in it."""
        assert self.process.stdout is not None
        assert any(words in line for line in self.process.stdout), "it was not said"


Supervise = Callable[..., Run]


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Supervise]:
    made: list[Run] = []

    def make(
        *table: Row,
        services: bool = False,
        port: int = 1,
        prepare_seconds: float = 0.0,
        followers: Sequence[str] = (),
        follow_seconds: float = PATIENCE,
    ) -> Run:
        made.append(
            Run(
                tmp_path / "data",
                table,
                services=services,
                port=port,
                prepare_seconds=prepare_seconds,
                followers=followers,
                follow_seconds=follow_seconds,
            )
        )
        return made[-1]

    yield make
    for run in made:
        if run.process.poll() is None:
            run.process.kill()
        run.process.communicate()
    if (tmp_path / "data" / "run").is_dir():
        sweep_remnants(tmp_path / "data", grace_seconds=0.2)
        EmbeddedServices(tmp_path / "data").stop()


def child(events: Path, name: str, role: str, *ways: str, grace: float = 60.0) -> Row:
    script = events.with_name("child.py")
    script.write_text(CHILD)
    return (name, role, (sys.executable, str(script), name, str(events), *ways), grace)


def events_of(path: Path, kind: str) -> dict[str, int]:
    """Name and pid of each event of a kind, in order."""
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return {name: int(pid) for what, name, pid in words if what == kind}


def children_of(data_dir: Path) -> dict[str, ProcessState]:
    """The children that the state file tells of."""
    state = read_up_state(data_dir)
    return state.children if state else {}


def services_of(data_dir: Path) -> set[int]:
    """The processes of the services that the state file tells of."""
    state = read_up_state(data_dir)
    return {service.pid for service in state.services.values() if service.pid} if state else set()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_term_stops_the_children_in_order_and_exits_with_zero(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    table = [
        child(events, name, name.rstrip("-12").upper())
        for name in ("web", "beat", "cpu", "engine-1", "engine-2")
    ]
    run = supervise(*table)
    wait_until(lambda: len(events_of(events, "start")) == 5)
    assert is_up(run.data_dir)
    assert run.stop() == 0
    names = list(events_of(events, "end"))
    assert set(names[:2]) == {"engine-1", "engine-2"}
    assert names[2:] == ["cpu", "beat", "web"]
    assert not any(alive(pid) for pid in events_of(events, "start").values())
    assert not is_up(run.data_dir)
    assert read_up_state(run.data_dir) is None


def test_ctrl_c_reaches_only_the_supervisor(tmp_path: Path, supervise: Supervise) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "web", "WEB"))
    wait_until(lambda: "web" in events_of(events, "start"))
    pid = events_of(events, "start")["web"]
    assert os.getsid(pid) == os.getpgid(pid) == pid
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(timeout=PATIENCE) == 0
    assert "web" in events_of(events, "end")


def test_a_child_that_dies_is_reported_and_restarted_with_growing_delay(
    supervise: Supervise,
) -> None:
    broken = ("engine-1", "ENGINE", (sys.executable, "-c", "raise SystemExit(3)"), 1.0)
    run = supervise(broken)

    def restarted_twice() -> bool:
        children = children_of(run.data_dir)
        return "engine-1" in children and children["engine-1"].restarts >= 2

    wait_until(restarted_twice)
    assert run.stop() == 0
    said = run.said()
    told = [str(words[1]) for words in said if words[0] == "told" and "ended" in str(words[1])]
    assert "ended with status 3" in told[0]
    assert "starting again in 0.5 s" in told[0]
    assert "starting again in 1 s" in told[1]
    assert str(run.data_dir / "logs" / "engine-1.log") in told[0]
    dead = [words[1] for words in said if words[0] == "dead"]
    assert len(set(dead)) == len(dead) >= 2


def test_a_killed_child_comes_back_without_what_it_forked(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "cpu", "CPU", "fork"))
    wait_until(lambda: len(events_of(events, "start")) == 2)
    first = events_of(events, "start")
    os.kill(first["cpu"], signal.SIGKILL)
    wait_until(lambda: events_of(events, "start")["cpu"] != first["cpu"])
    assert not alive(first["cpu-fork"])
    assert run.stop() == 0
    assert ["dead", first["cpu"]] in run.said()


def test_a_child_that_cannot_be_started_just_now_is_started_later(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "web", "WEB"))
    wait_until(lambda: "web" in events_of(events, "start"))
    first = events_of(events, "start")["web"]
    logs = run.data_dir / "logs"
    logs.rename(tmp_path / "aside")
    os.kill(first, signal.SIGKILL)
    run.hear("web could not be started")
    assert run.process.poll() is None
    (tmp_path / "aside").rename(logs)
    wait_until(lambda: events_of(events, "start")["web"] != first)
    assert run.stop() == 0


def test_a_port_that_remnants_hold_is_no_hindrance_and_a_strangers_is(tmp_path: Path) -> None:
    settings = load_settings(tmp_path)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        options = UpOptions(port=listener.getsockname()[1])

        def plan() -> int:
            return make_plan(settings, options, lambda _: None, lambda _: None).port

        with pytest.raises(SupervisorError, match="can't be used"):
            plan()
        itself = psutil.Process()
        web = ProcessState(pid=itself.pid, created=itself.create_time(), state="running")
        state = UpState(
            pid=1, created=0.0, url=options.url, port=options.port, ready=True,
            children={"web": web}, services={},
        )  # fmt: skip
        (tmp_path / "run").mkdir()
        write_up_state(tmp_path, state)
        assert plan() == options.port


def test_what_ignores_term_is_killed_after_its_grace_with_all_it_forked(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "engine-1", "ENGINE", "deaf", "fork", grace=0.3))
    wait_until(lambda: len(events_of(events, "start")) == 2)
    pids = events_of(events, "start")
    assert run.stop() == 0
    assert not any(alive(pid) for pid in pids.values())
    said = run.said()
    assert ["told", "engine-1 did not stop in time and was killed"] in said
    assert ["dead", pids["engine-1"]] in said


def test_a_second_signal_skips_the_grace(tmp_path: Path, supervise: Supervise) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "engine-1", "ENGINE", "deaf", grace=600.0))
    wait_until(lambda: "engine-1" in events_of(events, "start"))
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.process.poll() is None
    # Of another kind: two of one kind are one to a process that has not yet heard the first.
    run.process.send_signal(signal.SIGTERM)
    assert run.process.wait(timeout=PATIENCE) == 0


def test_a_second_signal_does_not_wait_for_a_preparation(supervise: Supervise) -> None:
    run = supervise(prepare_seconds=600.0)
    assert run.process.stdout is not None
    assert json.loads(run.process.stdout.readline()) == ["preparing"]
    run.process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert run.process.poll() is None
    assert run.stop() == 0  # by a signal of another kind, so that two are heard


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path, supervise: Supervise) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "web", "WEB"), child(events, "engine-1", "ENGINE"))
    wait_until(lambda: len(events_of(events, "start")) == 2)
    run.process.kill()
    run.process.wait()  # its children hear of the death of one of its threads
    wait_until(lambda: not any(alive(pid) for pid in events_of(events, "start").values()))
    assert len(events_of(events, "end")) == 2
    assert not is_up(run.data_dir)


def test_what_outlived_a_killed_supervisor_is_ended_by_the_next(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "cpu", "CPU", "deaf", "fork"))
    wait_until(lambda: len(events_of(events, "start")) == 2)
    wait_until(lambda: "cpu" in children_of(run.data_dir))
    run.process.kill()
    run.process.wait()
    pids = events_of(events, "start")
    assert all(alive(pid) for pid in pids.values())
    assert sweep_remnants(run.data_dir, grace_seconds=0.2) == [pids["cpu"]]
    wait_until(lambda: not any(alive(pid) for pid in pids.values()))


def test_a_pid_that_was_reused_is_spared(tmp_path: Path, supervise: Supervise) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "web", "WEB"))
    wait_until(lambda: "web" in children_of(run.data_dir))
    run.process.kill()
    run.process.wait()
    # The new owner of the number is a later process than the old one.
    time.sleep(0.2)
    state_path = run.data_dir / "run" / "up.json"
    state = json.loads(state_path.read_text())
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        state["children"]["web"]["pid"] = other.pid
        state_path.write_text(json.dumps(state))
        sweep_remnants(run.data_dir, grace_seconds=0.2)
        assert other.poll() is None
        other.kill()


def test_a_second_supervisor_is_refused(tmp_path: Path, supervise: Supervise) -> None:
    events = tmp_path / "events"
    first = supervise(child(events, "web", "WEB"))
    wait_until(lambda: "web" in events_of(events, "start"))
    second = supervise(child(events, "other", "WEB"))
    _, errors = second.process.communicate(timeout=PATIENCE)
    assert second.process.returncode != 0
    assert f"already runs on {first.data_dir} (process {first.process.pid}" in errors
    assert "tokenmill down" in errors
    assert "other" not in events_of(events, "start")
    assert first.stop() == 0


def test_readiness_is_announced_once_the_page_answers(tmp_path: Path, supervise: Supervise) -> None:
    (tmp_path / "readyz").write_text("ok")
    port = usable_port("127.0.0.1", 0)
    serve = (sys.executable, "-m", "http.server", str(port), "-b", "127.0.0.1", "-d", str(tmp_path))
    run = supervise(("web", "WEB", serve, 5.0), port=port)

    def ready() -> bool:
        state = read_up_state(run.data_dir)
        return state is not None and state.ready

    wait_until(ready)
    run.stop()
    assert ["ready", f"http://127.0.0.1:{port}"] in run.said()


def test_followers_start_when_the_page_answers(tmp_path: Path, supervise: Supervise) -> None:
    events, pages = tmp_path / "events", tmp_path / "pages"
    pages.mkdir()
    port = usable_port("127.0.0.1", 0)
    serve = (sys.executable, "-m", "http.server", str(port), "-b", "127.0.0.1", "-d", str(pages))
    run = supervise(
        ("web", "WEB", serve, 5.0),
        child(events, "cpu", "CPU"),
        child(events, "engine", "ENGINE"),
        port=port,
        followers=["cpu"],
    )
    wait_until(lambda: "engine" in events_of(events, "start"))
    assert children_of(run.data_dir)["cpu"].pid is None
    (pages / "readyz").write_text("ok")
    wait_until(lambda: "cpu" in events_of(events, "start"))
    wait_until(lambda: children_of(run.data_dir)["cpu"].state == "running")
    assert children_of(run.data_dir)["cpu"].restarts == 0
    assert run.stop() == 0
    assert list(events_of(events, "end")) == ["engine", "cpu"]


def test_followers_do_not_wait_for_a_page_that_never_answers(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    supervise(child(events, "cpu", "CPU"), followers=["cpu"], follow_seconds=0.3)
    wait_until(lambda: "cpu" in events_of(events, "start"))


def test_a_stop_before_the_followers_have_started_is_a_clean_one(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(
        child(events, "cpu", "CPU"), child(events, "engine", "ENGINE"), followers=["cpu"]
    )
    wait_until(lambda: "engine" in events_of(events, "start"))
    assert run.stop() == 0
    assert list(events_of(events, "start")) == ["engine"]


def test_services_that_die_are_started_again_at_the_same_address(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    run = supervise(child(events, "web", "WEB"), services=True)
    wait_until(lambda: "web" in events_of(events, "start"))
    urls = running(run.data_dir)
    assert urls is not None
    wait_until(lambda: bool(children_of(run.data_dir)))
    pids = services_of(run.data_dir)
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: len(services_of(run.data_dir) - pids) == 2)
    wait_until(lambda: running(run.data_dir) == urls)
    assert len(events_of(events, "start")) == 1
    assert run.stop() == 0
    assert running(run.data_dir) is None
    assert not EmbeddedServices(run.data_dir).occupied()


def test_services_outlive_a_killed_supervisor_and_are_taken_over(
    tmp_path: Path, supervise: Supervise
) -> None:
    events = tmp_path / "events"
    first = supervise(child(events, "web", "WEB"), services=True)
    wait_until(lambda: "web" in children_of(first.data_dir))
    wait_until(lambda: "web" in events_of(events, "start"))
    before = read_up_state(first.data_dir)
    first.process.kill()
    first.process.wait()
    assert running(first.data_dir) is not None
    events.unlink()
    second = supervise(child(events, "web", "WEB"), services=True)
    wait_until(lambda: "web" in events_of(events, "start"))
    wait_until(lambda: "web" in children_of(second.data_dir))
    after = read_up_state(second.data_dir)
    assert before is not None
    assert after is not None
    assert after.pid != before.pid
    assert after.services == before.services
    assert second.stop() == 0


def test_a_service_that_cannot_start_ends_the_supervisor_with_its_reason(
    tmp_path: Path, supervise: Supervise
) -> None:
    cluster = tmp_path / "data" / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("9\n")
    run = supervise(child(tmp_path / "events", "web", "WEB"), services=True)
    _, errors = run.process.communicate(timeout=PATIENCE)
    assert run.process.returncode != 0
    assert "made by PostgreSQL 9" in errors
    assert not (tmp_path / "events").exists()


def test_the_delay_doubles_to_its_bound_and_starts_over_after_health() -> None:
    backoff = Backoff()
    assert [backoff.after_death(1.0) for _ in range(4)] == [0.5, 1.0, 2.0, 4.0]
    assert [backoff.after_death(1.0) for _ in range(9)][-1] == LONGEST_SECONDS
    assert backoff.after_death(HEALTHY_SECONDS) == 0.5


def table_of(tmp_path: Path, options: UpOptions) -> dict[str, ProcessSpec]:
    settings = load_settings(tmp_path)
    urls = ServiceUrls("postgresql+psycopg://u:secret@/d", "redis://:secret@127.0.0.1:1/0")
    return {spec.name: spec for spec in process_table(settings, options, urls)}


def test_the_table_names_every_process_and_keeps_secrets_in_the_environment(
    tmp_path: Path,
) -> None:
    table = table_of(tmp_path, UpOptions(port=8123, workers=2, models=("small", "large")))
    assert list(table) == ["web", "beat", "cpu", "engine-1", "engine-2"]
    assert "127.0.0.1:8123" in table["web"].command
    assert table["engine-1"].command[-5:] == ("--engine", "--model", "small", "--model", "large")
    assert table["engine-1"].role is Role.ENGINE
    for spec in table.values():
        assert spec.env["TOKENMILL_DATA_DIR"] == str(tmp_path)
        assert spec.env["DATABASE_URL"].startswith("postgresql+psycopg://")
        assert not [word for word in spec.command if "secret" in word]


def test_node_names_differ_between_two_starts(tmp_path: Path) -> None:
    options = UpOptions()
    first, second = table_of(tmp_path, options)["cpu"], table_of(tmp_path, options)["cpu"]
    assert first.command != second.command


def test_no_engine_means_no_engine(tmp_path: Path) -> None:
    assert list(table_of(tmp_path, UpOptions(workers=0))) == ["web", "beat", "cpu"]


def test_a_taken_port_is_refused_with_a_way_out() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(SupervisorError, match="--port"):
            usable_port("127.0.0.1", port)
    assert usable_port("127.0.0.1", 0) > 0


def test_a_page_bound_everywhere_is_reached_on_loopback() -> None:
    assert UpOptions(host="0.0.0.0", port=80).url == "http://127.0.0.1:80"
    assert UpOptions(host="::1", port=80).url == "http://[::1]:80"
