"""``tokenmill schedules``: every verb, what it prints, and how it ends."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from timetable import Timetable
from typer.testing import CliRunner, Result
from workshop import Workshop

from runner.cli.app import app

CREATE = ("create", "nightly", "--cron", "30 5 * * *", "--zone", "Europe/Berlin")


@pytest.fixture
def run(
    workshop: Workshop, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Runs a verb of the group in the workshop's project."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("BROKER_URL", "memory://")

    def run(*words: str) -> Result:
        place = ("--project", "house", "--data-dir", str(tmp_path))
        return CliRunner().invoke(app, ["schedules", *words, *place])

    return run


def test_a_schedule_is_made_shown_and_listed(run: Callable[..., Result]) -> None:
    of_jobs = ("--max-cost", "2.5", "--job-tag", "nights", "--window", "2h")
    made = run(*CREATE, "--tag", "prompts", *of_jobs)
    assert made.exit_code == 0, made.output
    assert "At 05:30 every day, Europe/Berlin" in made.output
    assert "the newest file with the tag prompts" in made.output
    assert made.output.count("05:30 CE") == 5  # CET or CEST
    shown = json.loads(run("show", "nightly", "--json").output)
    assert (shown["max_cost_nano"], shown["tags"]) == (2_500_000_000, ["nights"])
    assert shown["completion_window"] == "2h"
    assert run("show", shown["id"]).output == run("show", "nightly").output
    (listed,) = json.loads(run("ls", "--json").output)
    assert listed == shown
    assert "nightly" in run("ls").output


def test_a_schedule_is_paused_resumed_and_deleted(run: Callable[..., Result]) -> None:
    run(*CREATE, "--tag", "prompts")
    assert json.loads(run("pause", "nightly", "--json").output)["next_runs"] == []
    assert len(json.loads(run("resume", "nightly", "--json").output)["next_runs"]) == 5
    assert run("delete", "nightly").output == "nightly is deleted.\n"
    assert json.loads(run("ls", "--json").output) == []


def test_names_are_told_as_they_are_whatever_brackets_they_have(
    run: Callable[..., Result],
) -> None:
    name = "[bold]n :smile: [/x]"
    assert run("create", name, *CREATE[2:], "--tag", "prompts").exit_code == 0
    assert name in run("ls").output
    assert name in run("show", name).output


def test_a_run_by_hand_stands_in_the_history_with_its_reason(
    run: Callable[..., Result], timetable: Timetable
) -> None:
    run(*CREATE, "--tag", "prompts")
    asked = json.loads(run("run", "nightly", "--json").output)
    assert asked["state"] == "waiting"
    timetable.start()
    (told,) = json.loads(run("history", "nightly", "--json").output)
    assert (told["id"], told["code"]) == (asked["id"], "input_missing")
    assert "No file has the tag 'prompts'." in run("history", "nightly").output


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("show", "nobody"), "There is no such schedule"),
        ((*CREATE[:3], "61 * * * *", "--tag", "a"), "cron"),
        ((*CREATE[:5], "Mars/X", "--tag", "a"), "Mars/X"),
        (CREATE, "exactly one of"),
        ((*CREATE, "--file", "nonsense"), "no such file"),
        ((*CREATE, "--path", "/etc/passwd"), "TOKENMILL_PLACES"),
        ((*CREATE, "--tag", "a", "--max-cost", "much"), "--max-cost"),
        ((*CREATE, "--tag", "a", "--run-hours", "25:00-26:00"), "run_hours"),
    ],
)
def test_bad_input_is_told_in_a_sentence_and_ends_with_2(
    words: tuple[str, ...], told: str, run: Callable[..., Result]
) -> None:
    answer = run(*words)
    assert answer.exit_code == 2, answer.output
    assert answer.stderr.startswith("error: ")
    assert told in answer.stderr
