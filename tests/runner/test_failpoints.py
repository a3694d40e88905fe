"""Fail-points: what a plan may say, when an order is due, and that each place exists."""

import ast
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import ValidationError

from runner.cli.app import main
from runner.config import Settings
from runner.failpoints import (
    EXIT_STATUS,
    FailPoint,
    FailPointReached,
    FailPoints,
    forget_marks,
    parse_plan,
)

HERE = FailPoint.CLAIM_AFTER_COMMIT
ROOT = Path(__file__).parents[2]


def armed(plan: str, marks: Path) -> FailPoints:
    points = FailPoints()
    points.arm(parse_plan(plan), marks)
    return points


def fails(reach: Callable[[], None]) -> bool:
    try:
        reach()
    except FailPointReached:
        return True
    return False


@pytest.mark.parametrize(
    ("when", "due"),
    [
        ("", [True, False, False]),
        (":1", [True, False, False]),
        (":2", [False, True, False]),
        (":*", [True, True, True]),
        (":once", [True, False, False]),
    ],
)
def test_an_order_is_due_at_its_hit(tmp_path: Path, when: str, due: list[bool]) -> None:
    points = armed(f"{HERE}=error{when}", tmp_path)
    assert not fails(lambda: points.hit(FailPoint.CLAIM_BEFORE_COMMIT))
    assert [fails(lambda: points.hit(HERE)) for _ in range(3)] == due


def test_once_holds_for_every_process_until_the_marks_are_forgotten(tmp_path: Path) -> None:
    plan, marks = f"{HERE}=error:once", tmp_path / "run" / "failpoints"
    assert [fails(lambda: armed(plan, marks).hit(HERE)) for _ in range(2)] == [True, False]
    forget_marks(marks)
    assert fails(lambda: armed(plan, marks).hit(HERE))


def test_an_order_with_a_text_is_about_prompts_that_hold_it(tmp_path: Path) -> None:
    points = armed(f"{HERE}@POISON=error", tmp_path)
    for prompt in (None, lambda: "good"):
        assert not fails(lambda prompt=prompt: points.hit(HERE, prompt))  # type: ignore[misc]
    assert fails(lambda: points.hit(HERE, lambda: "some POISON here"))


@pytest.mark.parametrize(("action", "status"), [("exit", EXIT_STATUS), ("kill", -9)])
def test_a_process_ends_at_once(tmp_path: Path, action: str, status: int) -> None:
    program = (
        "import runner.failpoints as points; from pathlib import Path;"
        f"points.arm(points.parse_plan('{HERE}={action}'), Path());"
        "points.hit(points.FailPoint.CLAIM_AFTER_COMMIT); print('alive')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True)
    assert (done.returncode, done.stdout) == (status, b"")


def test_a_delay_lasts_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("runner.failpoints.time", SimpleNamespace(sleep=slept.append))
    armed(f" {HERE}=delay-250:1 , {FailPoint.RING_WAKE}=exit", tmp_path).hit(HERE)
    assert slept == [0.25]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("ingest.after_lunch=exit", "no fail-point 'ingest.after_lunch'. There are: upload."),
        (f"{HERE}", "exit, kill, error or delay-"),
        (f"{HERE}=explode", "exit, kill, error or delay-"),
        (f"{HERE}=exit-5", "exit, kill, error or delay-"),
        (f"{HERE}=delay", "exit, kill, error or delay-"),
        (f"{HERE}=delay--1", "exit, kill, error or delay-"),
        (f"{HERE}=exit:0", "the number of a hit"),
        (f"{HERE}=exit:twice", "the number of a hit"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused_and_says_why(plan: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Settings(failpoints=plan)


def test_the_command_line_refuses_an_unknown_name_with_the_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENMILL_FAILPOINTS", "nowhere=exit")
    monkeypatch.setattr("sys.argv", ["tokenmill", "status"])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("The setting 'failpoints' is wrong. There is no fail-point 'nowhere'.")
    assert all(point in told for point in FailPoint)


def test_every_fail_point_is_a_place_in_the_code() -> None:
    named = {
        node.attr
        for package in ("runner", "web")
        for path in (ROOT / package).rglob("*.py")
        if path.name != "failpoints.py"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == FailPoint.__name__
    }
    assert named == set(FailPoint.__members__)


def test_a_process_without_a_plan_has_nothing_armed() -> None:
    assert "TOKENMILL_FAILPOINTS" not in os.environ
    assert Settings().failpoints == ""
