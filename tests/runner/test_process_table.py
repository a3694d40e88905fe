"""What `up` is to run: its processes, as a table, and the port of its page."""

import socket
from pathlib import Path

import psutil
import pytest

from runner.config import load_settings
from runner.embedded import ServiceUrls
from runner.supervisor import ProcessSpec, ProcessState, Role, UpOptions
from runner.supervisor.errors import SupervisorError
from runner.supervisor.launch import make_plan
from runner.supervisor.port import usable_port
from runner.supervisor.spec import process_table
from runner.supervisor.up_state import UpState, write_up_state


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
