"""The line that an engine worker logs once a minute."""

import json
import subprocess
import sys

import pytest

from runner.worker.step_report import PERIOD_SECONDS, StepReport

EARLIER = {
    "running": 1,
    "waiting": 0,
    "steps": 100,
    "kv_utilization": 0.1,
    "fragmentation": 0.5,
    "prefix_hit_tokens": 50,
    "prefix_query_tokens": 100,
    "preemptions": 1,
    "recomputed_tokens": 9,
    "prompt_tokens": 1_000,
    "output_tokens": 5_000,
    "copies": 4,
    "guessed_tokens": 10,
    "held_tokens": 8,
    "busy_us": 9_000_000,
    "host_us": 1_000_000,
}
LATER = {
    **EARLIER,
    "running": 64,
    "waiting": 16,
    "steps": 500,
    "kv_utilization": 0.75,
    "fragmentation": 0.0625,
    "prefix_hit_tokens": 350,
    "prefix_query_tokens": 500,
    "preemptions": 3,
    "prompt_tokens": 7_000,
    "output_tokens": 17_000,
    "copies": 5,
    "guessed_tokens": 90,
    "held_tokens": 58,
    "busy_us": 59_000_000,
    "host_us": 2_000_000,
}


class Desk:
    """A report with hands on its clock and its engine."""

    def __init__(self, stats: dict[str, float]) -> None:
        self.stats, self.now = stats, 1_000.0
        self.report = StepReport(lambda: self.stats, lambda: self.now)

    def after(self, seconds: float, stats: dict[str, float]) -> None:
        self.now += seconds
        self.stats = stats
        self.report.look()


def test_a_minute_of_work_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    desk = Desk(EARLIER)
    desk.after(PERIOD_SECONDS - 1, LATER)
    assert not caplog.records
    desk.after(1, LATER)
    (record,) = caplog.records
    assert (record.action, record.getMessage()) == (  # type: ignore[attr-defined]
        "engine_figures",
        "The engine in the last 60 s.",
    )
    assert record.figures == {  # type: ignore[attr-defined]
        "rows": 64,
        "waiting": 16,
        "output_tokens_per_s": 200.0,
        "prompt_tokens_per_s": 100.0,
        "kv_used": 0.75,
        "fragmentation": 0.062,
        "prefix_hits": 0.75,
        "preemptions": 2,
        "recomputed_tokens": 0,
        "copies": 1,
        "guessed_tokens": 80,
        "held_tokens": 50,
        "step_ms": 125.0,
        "host_ms": 2.5,
    }


def test_an_idle_minute_and_a_backend_without_clocks_are_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    Desk(EARLIER).after(PERIOD_SECONDS, {**LATER, "steps": EARLIER["steps"]})
    Desk({"steps": 0}).after(PERIOD_SECONDS, {"steps": 9, "running": 3, "waiting": 0})
    assert not caplog.records


def test_the_figures_are_fields_of_a_log_in_json() -> None:
    script = (
        "import logging; from runner.config import Settings; from runner.log import *;"
        "configure_logging(Settings(log_format='json'));"
        "logging.getLogger('w').info('It.', extra={'action': 'a', 'figures': {'rows': 3}})"
    )
    log = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert json.loads(log.stderr)["figures"] == {"rows": 3}
