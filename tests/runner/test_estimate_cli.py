"""``tokenmill estimate``: what it prints, and how it ends."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner, Result
from workshop import Workshop, joined, make_item

from runner.cli.app import app
from runner.db.models import File, Job


@pytest.fixture
def estimate(
    workshop: Workshop, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> "Estimate":
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("BROKER_URL", "memory://")
    return Estimate(tmp_path)


class Estimate:
    """Runs the verb on a file of some lines."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, lines: Sequence[bytes], *words: str) -> Result:
        file = self._folder / "lines.jsonl"
        file.write_bytes(joined(lines))
        command = ["estimate", str(file), "--data-dir", str(self._folder), *words]
        return CliRunner().invoke(app, command)


def test_a_good_file_is_told_in_tokens_and_money(estimate: Estimate, workshop: Workshop) -> None:
    told = estimate([make_item(str(n), "three small words", max_tokens=4) for n in range(5)])
    assert told.exit_code == 0, told.output
    assert "5 lines for org/stub at /v1/chat/completions" in told.output
    assert "15 input tokens (exact)" in told.output
    assert "no history yet" in told.output
    for table in (File, Job):
        assert workshop.scalar(select(func.count()).select_from(table)) == 0


def test_equal_lines_are_told_of(estimate: Estimate) -> None:
    lines = [make_item(str(n), f"tale {n % 2}", temperature=0) for n in range(5)]
    assert "3 lines are equal to earlier ones" in estimate(lines).output


def test_programs_get_every_figure(estimate: Estimate) -> None:
    told = json.loads(estimate([make_item("a", "three small words")], "--json").output)
    assert told["estimate"]["input_tokens"] == told["counted"] * 3 == 3
    assert told["estimate"]["billed"]["likely"] <= told["estimate"]["billed_most"]


def test_faults_are_named_and_end_with_a_failure(estimate: Estimate) -> None:
    told = estimate([make_item("a"), b"{", make_item("c", n=0)])
    assert told.exit_code == 1
    assert "line 2: " in told.output
    assert "1 lines would be refused" in told.output


def test_a_model_may_be_named_for_lines_that_name_none(estimate: Estimate) -> None:
    line = make_item("a").replace(b'"model": "org/stub", ', b"")
    assert estimate([line]).exit_code == 2
    assert estimate([line], "--model", "org/stub").exit_code == 0


def test_an_endpoint_that_does_not_exist_is_wrong_use(estimate: Estimate) -> None:
    told = estimate([make_item("a")], "--endpoint", "/v1/moderations")
    assert told.exit_code == 2
    assert "endpoint must be one of" in told.output
