"""A fault is logged with where it happened, never with what the variables held."""

import subprocess
import sys

import pytest

from runner.worker import feeder

_SCRIPT = """
import logging, sys
from runner.config import Settings
from runner.log import configure_logging

def prepare(prompt):
    raise LookupError("no such thing")

configure_logging(Settings(log_format=sys.argv[1]))
try:
    prepare("".join(["canary", "-", "prompt"]))
except LookupError:
    logging.getLogger("worker").critical("It cannot go on.", exc_info=True)
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_a_traceback_shows_no_variables(log_format: str) -> None:
    command = [sys.executable, "-c", _SCRIPT, log_format]
    log = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "It cannot go on." in log
    assert "LookupError: no such thing" in log
    assert "canary-prompt" not in log


def test_a_line_that_cannot_be_prepared_is_logged_without_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    words = "-".join(["canary", "prompt"])  # so that the frame's own source does not hold them
    try:
        raise LookupError(words)
    except LookupError as error:
        feeder._tell(error)
    assert "could not be prepared: LookupError" in caplog.text
    assert "test_log.py" in caplog.text
    assert "canary-prompt" not in caplog.records[0].getMessage()
