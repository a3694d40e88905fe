"""Projects: made on purpose only, and each with a weight in the sharing of devices."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select
from typer.testing import CliRunner, Result
from workshop import Workshop, joined, make_items

from runner.cli.app import app
from runner.db.models import AuditEntry, Project
from runner.services.turns import waiting_jobs


@pytest.fixture
def run(
    workshop: Workshop, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs a verb on the workshop's installation."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("BROKER_URL", "memory://")

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--data-dir", str(tmp_path)])

    return run


def test_a_mistyped_project_is_not_made(
    run: Callable[..., Result], workshop: Workshop, tmp_path: Path
) -> None:
    file = tmp_path / "lines.jsonl"
    file.write_bytes(joined(make_items(2)))
    for words in (
        ("submit", str(file)),
        ("jobs", "ls"),
        ("budgets", "ls"),
        ("estimate", str(file)),
    ):
        refused = run(*words, "--project", "huose")
        assert refused.exit_code == 2
        assert "There is no project 'huose'. Did you mean 'house'?" in refused.output
        assert "tokenmill projects create NAME" in refused.output
    assert workshop.scalar(select(func.count()).select_from(Project)) == 1
    assert run("jobs", "ls").exit_code == 0  # nobody need make the default one


def test_a_project_is_made_on_purpose(run: Callable[..., Result]) -> None:
    assert json.loads(run("projects", "create", "garden", "--json").output)["weight"] == 1
    assert "already" in run("projects", "create", "garden").output
    assert "is new with this key" in run("keys", "create", "--project", "shed").output
    assert "is new" not in run("keys", "create", "--project", "shed").output
    listed = json.loads(run("projects", "ls", "--json").output)
    assert [one["name"] for one in listed] == ["garden", "house", "shed"]


def test_a_weight_counts_from_the_next_lease_on(
    run: Callable[..., Result], workshop: Workshop
) -> None:
    workshop.make_job()
    assert run("projects", "weight", "house", "7").output.startswith("house: weight 7")
    with workshop.sessions() as session:
        (waiting,) = waiting_jobs(session, workshop.model.id)
    assert waiting.weight == 7
    told = workshop.rows(select(AuditEntry.detail).where(AuditEntry.action == "project.weight"))
    assert [row.detail for row in told] == [{"from": 1, "to": 7}]
    assert run("projects", "weight", "house", "0").exit_code == 2
    assert "no project 'hosue'" in run("projects", "weight", "hosue", "2").output
