"""The command line against the same installation."""

import json
import subprocess
import sys
from pathlib import Path

import openai
import pytest
from installation import Server, chat_line, run_cli

from runner.model_library import BUILTIN_MODEL


@pytest.fixture
def input_file(tmp_path: Path) -> Path:
    path = tmp_path / "input.jsonl"
    path.write_bytes(
        b"".join(
            chat_line(f"r{n}", BUILTIN_MODEL, f"Say {n}.", max_tokens=4, temperature=0)
            for n in range(3)
        )
    )
    return path


def test_submit_waits_saves_and_reports(server: Server, input_file: Path, tmp_path: Path) -> None:
    output = tmp_path / "output.jsonl"
    job = run_cli(server.data_dir, "submit", str(input_file), "--wait", "--output", str(output))
    assert job["state"] == "completed"
    assert job["totals"]["succeeded"] == 3
    saved = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["custom_id"] for line in saved] == ["r0", "r1", "r2"]
    shown = run_cli(server.data_dir, "jobs", "show", job["id"])
    assert shown["report"]["account"]["lines"] == 3
    assert shown["report"]["account"]["total"]["p99"] > 0
    assert shown["report"]["account"]["lanes"] == [
        {"lane": {"name": "paged", "reason": ""}, "lines": 3}
    ]
    listed = run_cli(server.data_dir, "jobs", "ls")
    assert job["id"] in {one["id"] for one in listed}
    results = subprocess.run(
        [sys.executable, "-m", "runner.cli", "jobs", "results", job["id"]]
        + ["--data-dir", str(server.data_dir)],
        capture_output=True,
        check=True,
    )
    assert results.stdout == output.read_bytes()


def test_submit_of_a_bad_file_exits_with_failures(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"nonsense\n")
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli", "submit", str(path), "--wait"]
        + ["--data-dir", str(server.data_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "invalid_json_line" in done.stdout


def test_a_revoked_key_is_refused_at_once(server: Server) -> None:
    made = run_cli(server.data_dir, "keys", "create", "--project", "tests", "--name", "short")
    with server.client(key=made["key"]) as client:
        client.models.list()
        run_cli(server.data_dir, "keys", "revoke", made["id"])
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


def test_pickled_weights_are_refused_with_a_reason(server: Server, tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli", "models", "add", "evil", str(tmp_path)]
        + ["--data-dir", str(server.data_dir)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pickle_refused" in done.stderr
    names = {model["name"] for model in run_cli(server.data_dir, "models", "ls")}
    assert BUILTIN_MODEL in names
    assert "evil" not in names


def test_bench_engine_writes_ids_and_figures(smollm2_folder: Path, tmp_path: Path) -> None:
    workload = tmp_path / "workload.jsonl"
    workload.write_text("".join(f'{{"prompt": [{n}, 5, 6], "max_tokens": 3}}\n' for n in (7, 7)))
    out = tmp_path / "ids.json"
    figures = run_cli(
        tmp_path, "bench", "engine", "--model", str(smollm2_folder),
        "--workload", str(workload), "--out", str(out), "--profile",
    )  # fmt: skip
    assert figures["output_tokens"] == 6
    assert figures["seconds"] > 0
    assert figures["output_tokens_per_second"] > 0
    assert [len(ids) for ids in json.loads(out.read_text())] == [3, 3]
    assert figures["stats"]["copies"] == 0  # every line is computed, equal ones too


def test_bench_engine_runs_with_guesses_and_without(smollm2_folder: Path, tmp_path: Path) -> None:
    workload = tmp_path / "workload.jsonl"
    workload.write_text(f'{{"prompt": {[5, 6, 7] * 20}, "max_tokens": 60}}\n')
    plain = ("bench", "engine", "--model", str(smollm2_folder), "--workload", str(workload))
    guessing, alone = run_cli(tmp_path, *plain), run_cli(tmp_path, *plain, "--no-guesses")
    assert guessing["stats"]["held_tokens"] > 0
    assert alone["stats"]["guessed_tokens"] == 0
    assert guessing["stats"]["steps"] < alone["stats"]["steps"]
