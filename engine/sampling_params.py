"""What a caller may ask of one request, and the check that it makes sense."""

import math
from dataclasses import dataclass

from engine.errors import InvalidParams

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy decoding."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to continue one prompt.

    Attributes:
        max_tokens: most output tokens, the final end-of-sequence token included.
        temperature: 0 (or below 1e-5) is greedy: the largest logit, lowest id on ties.
        top_p: keep the smallest set of tokens whose probability reaches this; 1 is off.
        top_k: keep the k most likely tokens; 0 is off.
        seed: with the output position it fixes the noise, so a rerun gives the same tokens.
        stop: strings that end the output; the text is cut before the earliest match.
        stop_token_ids: ids that end the output like an end-of-sequence token.
        ignore_eos: go on past the model's own end-of-sequence tokens.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    def validate(self) -> None:
        """Raise InvalidParams, naming the first bad field."""
        _check_int(self.max_tokens, "max_tokens", at_least=1)
        _check_number(self.temperature, "temperature")
        if self.temperature < 0:
            raise InvalidParams("temperature must not be negative.", "temperature")
        _check_number(self.top_p, "top_p")
        if not 0 < self.top_p <= 1:
            raise InvalidParams("top_p must be above 0 and at most 1.", "top_p")
        _check_int(self.top_k, "top_k", at_least=0)
        _check_int(self.seed, "seed", at_least=None)
        if not all(isinstance(text, str) and text for text in self.stop):
            raise InvalidParams("stop must hold non-empty strings only.", "stop")
        for token_id in self.stop_token_ids:
            _check_int(token_id, "stop_token_ids", at_least=0)


def _check_int(value: object, param: str, at_least: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParams(f"{param} must be a whole number.", param)
    if at_least is not None and value < at_least:
        raise InvalidParams(f"{param} must be at least {at_least}.", param)


def _check_number(value: object, param: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        raise InvalidParams(f"{param} must be a finite number.", param)
