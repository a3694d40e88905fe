"""What a caller may ask of one request, and the check that it makes sense."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.errors import InvalidParams
from engine.grammar import Grammar

GREEDY_TEMPERATURE = 1e-5
"""Below this a temperature means greedy decoding."""
MAX_LOGPROBS = 20
"""Likeliest tokens told per output token."""
MAX_BIAS_ENTRIES = 1024
MAX_BIAS = 100.0
MAX_PENALTY = 2.0


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
        min_p: keep the tokens at least this likely, as a share of the likeliest; 0 is off.
        presence_penalty: taken from the logit of every token the output holds, -2 to 2.
        frequency_penalty: the same, once for each time the output holds it.
        repetition_penalty: divides the positive logits (multiplies the negative ones) of every
            token that prompt or output hold; 1 is off.
        logit_bias: added to the logit of a token id, -100 to 100.
        min_tokens: no end token, stop id or stop string ends the output before it.
        logprobs: tell each output token's log-probability and this many of the likeliest
            tokens; None is off, 0 tells the token's own only.
        grammar: what the output must look like. It decides when an end token may come, and an
            output that can only end does so at once, before `min_tokens` too.
        skip_special_tokens: leave special tokens out of the text.

    Order: bias, penalties, min_tokens, grammar, temperature, min_p, top_k, top_p.
    Log-probabilities are those of the model, before all of it.
    """

    max_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    logprobs: int | None = None
    grammar: Grammar | None = None
    skip_special_tokens: bool = True

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_TEMPERATURE

    @property
    def has_penalty(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

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
        _check_range(self.min_p, "min_p", 0, 1)
        _check_range(self.presence_penalty, "presence_penalty", -MAX_PENALTY, MAX_PENALTY)
        _check_range(self.frequency_penalty, "frequency_penalty", -MAX_PENALTY, MAX_PENALTY)
        _check_number(self.repetition_penalty, "repetition_penalty")
        if self.repetition_penalty <= 0:
            raise InvalidParams("repetition_penalty must be above 0.", "repetition_penalty")
        self._check_bias()
        _check_int(self.min_tokens, "min_tokens", at_least=0)
        if self.min_tokens > self.max_tokens:
            raise InvalidParams(
                f"min_tokens must be at most the {self.max_tokens:,} tokens there is room for.",
                "min_tokens",
            )
        if self.logprobs is not None:
            _check_int(self.logprobs, "logprobs", at_least=0)
            _check_range(self.logprobs, "logprobs", 0, MAX_LOGPROBS)
        if self.grammar is not None and self.ignore_eos:
            raise InvalidParams(
                "ignore_eos can't be used with a grammar, which decides where the output ends.",
                "ignore_eos",
            )

    def _check_bias(self) -> None:
        if len(self.logit_bias) > MAX_BIAS_ENTRIES:
            raise InvalidParams(
                f"logit_bias has at most {MAX_BIAS_ENTRIES:,} entries.", "logit_bias"
            )
        for token_id, value in self.logit_bias.items():
            _check_int(token_id, "logit_bias", at_least=0)
            _check_range(value, "logit_bias", -MAX_BIAS, MAX_BIAS)


def _check_int(value: object, param: str, at_least: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidParams(f"{param} must be a whole number.", param)
    if at_least is not None and value < at_least:
        raise InvalidParams(f"{param} must be at least {at_least}.", param)


def _check_number(value: object, param: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):  # type: ignore[arg-type]
        raise InvalidParams(f"{param} must be a finite number.", param)


def _check_range(value: float, param: str, least: float, most: float) -> None:
    _check_number(value, param)
    if not least <= value <= most:
        raise InvalidParams(f"{param} must be from {least:g} to {most:g}.", param)
