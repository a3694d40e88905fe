"""The supervisor, run as a process of its own over small real children."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from patience import PATIENCE, wait_until
from supervised import Row, Run, alive, child, children_of, events_of, services_of

from runner.embedded import EmbeddedServices, running
from runner.supervisor import is_up, read_up_state
from runner.supervisor.backoff import HEALTHY_SECONDS, LONGEST_SECONDS, Backoff
from runner.supervisor.port import usable_port
from runner.supervisor.remnants import sweep_remnants

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
