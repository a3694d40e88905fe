"""From an operator's settings to the engine's."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.quantisation import Quantisation
from runner.config import Settings
from runner.inference.local.backend import engine_config


def test_weights_are_left_as_they_are_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_config(Path("m"), Settings()).quantisation == Quantisation("auto", "auto")
    monkeypatch.setenv("TOKENMILL_WEIGHTS", "int4")
    monkeypatch.setenv("TOKENMILL_KV_CACHE", "int8")
    assert engine_config(Path("m"), Settings()).quantisation == Quantisation("int4", "int8")


def test_an_unknown_format_of_weights_is_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TOKENMILL_WEIGHTS", "int3")
    with pytest.raises(ValidationError, match="weights"):
        Settings()
