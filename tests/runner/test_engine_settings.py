"""From an operator's settings to the engine's."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.quantisation import Quantisation
from runner.config import Settings
from runner.inference.local.backend import engine_config


def test_weights_are_left_as_they_are_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_config(Path("m"), Settings()).quantisation == Quantisation("auto", "auto")
    monkeypatch.setenv("TOKENMILL_QUANTIZE", "int4 kv-int8")
    assert engine_config(Path("m"), Settings()).quantisation == Quantisation("int4", "int8")


@pytest.mark.parametrize("parts", ["int3", "int8 int4"])
def test_weights_of_no_format_or_of_two_are_refused_at_the_start(
    monkeypatch: pytest.MonkeyPatch, parts: str
) -> None:
    monkeypatch.setenv("TOKENMILL_QUANTIZE", parts)
    with pytest.raises(ValidationError, match="int4"):
        Settings()
