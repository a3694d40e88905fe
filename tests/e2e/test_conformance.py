"""The conformance suite: every trap holds here, and what another server spoils is found."""

import json
import subprocess
import sys
from typing import Any

import pytest
from installation import Server, run_cli
from spoiling import Spoil, spoiled

from runner.conformance.suite import examine
from runner.conformance.target import Target
from runner.conformance.verdicts import Verdict

MODEL = "stub-of-conformance"


@pytest.fixture(scope="module")
def stub(server: Server) -> str:
    """A model that answers slowly enough to be met at work, and needs no weights."""
    run_cli(server.data_dir, "models", "add", MODEL, "stub:?rows=8&step_ms=20")
    return MODEL


def test_all_seventeen_traps_hold(server: Server, stub: str) -> None:
    other = run_cli(server.data_dir, "keys", "create", "--project", "strangers")["key"]
    options = {"base-url": server.url, "api-key": server.key, "other-api-key": other, "model": stub}
    command = [sys.executable, "-m", "runner.cli", "conformance", "--json"]
    command += [f"--{name}={value}" for name, value in options.items()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    wrong = [found for found in told["findings"] if found["verdict"] != "passed"]
    assert (wrong, told["score"], done.returncode) == ([], "17/17", 0)
    said = {found["number"]: found["said"] for found in told["findings"]}
    assert said[13] == "a message that was sent here is accepted"
    assert said[16] == "404 for another tenant's batch and file"


def _no_cursor(answer: dict[str, Any]) -> None:
    """The list says that there is more, but gives the last page's cursor a wrong place."""
    if answer.get("object") == "list" and answer["data"]:
        answer["has_more"] = True
        answer["data"][-1]["id"] = answer["data"][0]["id"]


def _empty_name(answer: dict[str, Any]) -> None:
    if answer.get("object") == "batch" and answer["error_file_id"] is None:
        answer["error_file_id"] = ""


def _own_status(answer: dict[str, Any]) -> None:
    if answer.get("status") == "validating":
        answer["status"] = "queued"


@pytest.mark.parametrize(
    ("number", "spoil", "came"),
    [
        (2, _no_cursor, "again after"),
        (8, _empty_name, "expected error_file_id null; came ''"),
        (9, _own_status, "came 'queued'"),
    ],
)
def test_what_a_server_spoils_fails_its_trap(
    server: Server, stub: str, number: int, spoil: Spoil, came: str
) -> None:
    with spoiled(server.url, spoil) as url:
        (found,) = examine(Target(f"{url}/v1", server.key, stub), {number})
    assert found.verdict is Verdict.FAILED
    assert came in found.said
