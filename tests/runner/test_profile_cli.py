"""``tokenmill profile``: which worker is meant, what is written and what is shown."""

import gzip
import os
import socket
from pathlib import Path

import pytest
from test_traces import STEP, packed

from runner.cli.profile import choose, show, wait_until_done, write
from runner.domain.errors import InvalidRequest, NotFound
from runner.domain.ids import WORKER_PREFIX, WorkerId, encode, new_uuid
from runner.domain.traces import summarise
from runner.services.profiles import EngineWorkerRecord
from runner.supervisor.up_state import ProcessState, UpState, write_up_state

PID = os.getpid()


def worker(pid: int, host: str) -> EngineWorkerRecord:
    return EngineWorkerRecord(WorkerId(new_uuid()), host, pid, "small", "ready")


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Where a supervisor says that engine-1 is this process."""
    (tmp_path / "run").mkdir()
    child = ProcessState(pid=PID, created=1.0, state="running")
    state = UpState(
        pid=1, created=1.0, url="", port=1, ready=True, children={"engine-1": child}, services={}
    )
    write_up_state(tmp_path, state)
    return tmp_path


def test_a_worker_is_named_by_its_id_or_by_its_place_on_this_host(data_dir: Path) -> None:
    here, there = worker(PID, socket.gethostname()), worker(PID, "elsewhere")
    assert choose([there, here], "engine-1", data_dir) is here
    assert choose([here, there], encode(WORKER_PREFIX, there.id), data_dir) is there
    assert choose([there], None, data_dir) is there


def test_who_is_not_there_is_told_with_who_is(data_dir: Path) -> None:
    two = [worker(1, "a"), worker(2, "b")]
    for name, error in (("engine-1", NotFound), (None, InvalidRequest)):
        with pytest.raises(error) as caught:
            choose(two, name, data_dir)
        assert caught.value.param == "worker"
        assert all(encode(WORKER_PREFIX, one.id) in str(caught.value) for one in two)
    with pytest.raises(NotFound, match="No engine worker lives"):
        choose([], None, data_dir)


def test_a_trace_is_written_whole_and_plain_where_its_name_says_so(tmp_path: Path) -> None:
    trace = packed(STEP)
    write(tmp_path / "a.json.gz", trace)
    write(tmp_path / "a.json", trace)
    assert (tmp_path / "a.json.gz").read_bytes() == trace
    assert (tmp_path / "a.json").read_bytes() == gzip.decompress(trace)
    (tmp_path / "folder").mkdir()
    with pytest.raises(InvalidRequest, match="cannot be written"):
        write(tmp_path / "folder", trace)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.json.gz", "folder"]


def test_the_summary_reads_in_one_look(capsys: pytest.CaptureFixture[str]) -> None:
    show(summarise(packed(STEP)), 5, Path("t.json.gz"))
    shown = capsys.readouterr().out
    assert "1 of 5 steps: 1.0 ms on average" in shown
    assert "7.0 tokens in 3.0 rows per step" in shown
    assert "25.0%" in shown
    assert "aten::bmm" in shown


def test_of_an_idle_worker_is_told_once_however_late_it_took_the_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    states = iter([*["asked"] * 4, "taken", "taken", "done"])
    wait_until_done(lambda: next(states), 7.0)
    assert capsys.readouterr().err.count("The worker is idle; waiting up to 7 s") == 1
