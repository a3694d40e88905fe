"""From an operator's settings to the engine's."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from engine.config import MOST_GUESSES
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


def test_an_operator_says_how_much_may_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert engine_config(Path("m"), Settings()).num_speculative_tokens == MOST_GUESSES
    monkeypatch.setenv("TOKENMILL_NUM_SPECULATIVE_TOKENS", "0")
    assert engine_config(Path("m"), Settings()).num_speculative_tokens == 0
    monkeypatch.setenv("TOKENMILL_NUM_SPECULATIVE_TOKENS", str(MOST_GUESSES + 1))
    with pytest.raises(ValidationError, match="num_speculative_tokens"):
        Settings()
