"""``tokenmill run``: one file, one command, no server; killed, interrupted, and gone on with."""

import csv
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from installation import chat_line, eventually
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from runner.db.session import create_session_factory
from runner.embedded import recorded
from runner.offline.place import Place

STUB = "stub:?rows=4&step_ms=20"
MANY = 400  # lines that a busy machine does not finish while it is looked at
Ledger = dict[int, tuple[object, ...]]


def command(source: Path, output: Path, model: str, *options: str) -> list[str]:
    begin = [sys.executable, "-m", "runner.cli", "run", str(source), "-o", str(output)]
    return [*begin, "--model", model, "--json", *options]


def run(
    source: Path, output: Path, model: str, *options: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(source, output, model, *options),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {f"TOKENMILL_{name.upper()}": value for name, value in settings.items()},
    )


def place_of(output: Path) -> Path:
    return output.with_name(f"{output.name}.tokenmill")


def write_lines(path: Path, count: int, model: str | None = "m", poison: int = -1) -> Path:
    body = {} if model is None else {"model": model}
    prompts = ["POISON" if n == poison else f"Say {n}." for n in range(count)]
    lines = [json.loads(chat_line(f"r{n}", "m", prompt)) for n, prompt in enumerate(prompts)]
    for line in lines:
        line["body"] = {**body, "messages": line["body"]["messages"]}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def custom_ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def read_ledger(url: str) -> Ledger:
    """Every result that is committed: who made it, under which epoch, and its bytes."""
    sessions = create_session_factory(url, pool_size=1)
    query = (
        "SELECT r.idx, u.worker_id, u.attempt, r.epoch, r.line FROM results r"
        " JOIN usage u USING (job_id, idx)"
    )
    try:
        with sessions() as session:
            return {row[0]: tuple(row[1:]) for row in session.execute(text(query))}
    except DBAPIError:  # not up yet, or without tables
        return {}
    finally:
        sessions.kw["bind"].dispose()


def ledger_at_rest(output: Path) -> Ledger:
    """The ledger of a run that is not at work."""
    place = Place(place_of(output))
    place.take(print)
    try:
        with place.services() as urls:
            return read_ledger(urls.database_url)
    finally:
        place.leave()


@contextmanager
def running(source: Path, output: Path, results: int) -> Iterator["subprocess.Popen[str]"]:
    """A run that has committed some results."""

    def begun() -> bool:
        urls = recorded(place_of(output))
        return urls is not None and len(read_ledger(urls.database_url)) >= results

    process = subprocess.Popen(
        command(source, output, STUB), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        eventually(begun)
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_run_survives_kills_of_itself_and_its_database_with_no_line_done_twice(
    tmp_path: Path,
) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", MANY), tmp_path / "out.jsonl"
    with running(source, output, 10) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    killed = ledger_at_rest(output)
    assert 10 <= len(killed) < MANY
    assert not output.exists()
    with running(source, output, len(killed) + 10) as process:
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert process.returncode == 130
    assert "The same command goes on from here" in told
    logged = (place_of(output) / "logs" / "engine.log").read_text()
    assert "Draining" in logged
    assert "Fatal" not in logged
    interrupted = ledger_at_rest(output)
    assert len(killed) < len(interrupted) < MANY
    assert killed.items() <= interrupted.items()
    with running(source, output, len(interrupted) + 10) as process:
        postmaster = (place_of(output) / "postgres" / "postmaster.pid").read_text().split()[0]
        os.kill(int(postmaster), signal.SIGKILL)
        told, logged = process.communicate()
    assert process.returncode == 0, logged
    assert "The database is away" in logged
    assert custom_ids(output) == [f"r{n}" for n in range(MANY)]
    lines = output.read_bytes().splitlines(keepends=True)
    assert all(lines[idx] == entry[-1] for idx, entry in interrupted.items())
    used = [json.loads(line)["response"]["body"]["usage"]["completion_tokens"] for line in lines]
    assert json.loads(told)["output_tokens"] == sum(used)


def test_a_killed_run_leaves_its_place_even_if_its_database_cannot_be_ended(tmp_path: Path) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", MANY), tmp_path / "out.jsonl"
    turns = place_of(output) / "run" / "services.lock"
    with running(source, output, 1) as process:
        turns.unlink()
        turns.mkdir()
        process.send_signal(signal.SIGKILL)
        process.wait()
    place = Place(place_of(output))
    place.take(print)
    place.leave()
    assert "database may still run" in (place.folder / "logs" / "engine.log").read_text()
    turns.rmdir()
    assert len(ledger_at_rest(output)) < MANY  # the database that was left there is found again


def test_a_run_that_is_done_stays_done_and_only_with_fresh_takes_another_input(
    tmp_path: Path,
) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", 3, model=None), tmp_path / "out.jsonl"
    first = run(source, output, "stub:")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout)["model"] == "stub"
    assert sorted(path.name for path in place_of(output).iterdir()) == ["lock", "run.json"]
    assert not output.with_name("out.jsonl.errors").exists()
    again = run(source, output, "stub:")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    assert "Done already" in again.stderr
    source.write_text("nonsense\n")
    other = run(source, output, "stub:")
    assert other.returncode == 2
    assert "another input" in other.stderr
    assert "[another_run]" in other.stderr
    fresh = run(source, output, "stub:", "--fresh")
    assert fresh.returncode == 2
    assert "line 1:" in fresh.stdout
    assert "[invalid_json_line]" in fresh.stdout
    assert not place_of(output).exists()


def test_a_line_that_kills_the_engine_fails_alone(tmp_path: Path) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", 3, poison=1), tmp_path / "out.jsonl"
    done = run(source, output, "stub:?crash_on=POISON", shard_lines="1")
    assert done.returncode == 1, done.stderr
    assert custom_ids(output) == ["r0", "r2"]
    errors = output.with_name("out.jsonl.errors")
    assert custom_ids(errors) == ["r1"]
    assert "engine_crash" in errors.read_text()


def test_a_table_is_answered_row_by_row(tmp_path: Path) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text(f"id,text\n1,=hello\n2,{'long ' * 200}\n3,there\n")
    model = "stub:?slow_because=a+test"
    done = run(source, output, model, "--template", "Say {text}.", max_line_bytes="600")
    assert done.returncode == 1, done.stderr
    summary: dict[str, Any] = json.loads(done.stdout)
    assert summary["lanes"] == [{"name": "stub", "reason": "a test", "lines": 2}]
    assert (summary["succeeded"], summary["failed"]) == (2, 1)
    with output.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["id"] for row in rows] == ["1", "2", "3"]
    assert rows[0]["text"] == "'=hello"
    assert [bool(row["answer"]) for row in rows] == [True, False, True]
    assert "[line_too_long]" in rows[1]["error"]
    costs = [round(float(row["cost"]) * 1e9) for row in rows if row["cost"]]
    assert sum(costs) == summary["billed_nano"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--template", "{txt}"), "no column 'txt'"),
        ((), "become prompts"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_made(
    tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    source, output = tmp_path / "in.csv", tmp_path / "out.csv"
    source.write_text("id,text\n1,a\n")
    done = run(source, output, "stub:", *options)
    assert done.returncode == 2
    assert words in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    source, other = write_lines(tmp_path / "in.jsonl", 1), tmp_path / "other"
    other.mkdir()
    (other / "precious").write_text("x")
    options = ("--data-dir", str(other), "--fresh")
    done = run(source, tmp_path / "out.jsonl", "stub:", *options)
    assert done.returncode == 2
    assert "not of a run" in done.stderr
    assert [path.name for path in other.iterdir()] == ["precious"]


def test_a_real_model_answers_lines_that_call_it_by_another_name(
    tmp_path: Path, smollm2_folder: Path
) -> None:
    source, output = write_lines(tmp_path / "in.jsonl", 3, model="org/other"), tmp_path / "o.jsonl"
    body = {"max_tokens": 4, "temperature": 0}
    lines = [json.loads(line) for line in source.read_text().splitlines()]
    short = [{**line, "body": {**line["body"], **body}} for line in lines]
    source.write_text("".join(json.dumps(line) + "\n" for line in short))
    done = run(source, output, str(smollm2_folder), memory_utilization="0.1")
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line)["response"]["body"] for line in output.read_text().splitlines()]
    assert [answer["model"] for answer in answers] == ["org/other"] * 3
    assert all(answer["choices"][0]["message"]["content"] for answer in answers)
    assert json.loads(done.stdout)["run_cost_nano"] > 0
