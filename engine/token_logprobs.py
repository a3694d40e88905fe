"""How likely the model found one output token, and what it found likeliest."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms of probabilities in the model's own distribution, before any edit.

    Attributes:
        logprob: of the token that was taken.
        top: the likeliest tokens, best first, as (token id, logprob).
    """

    logprob: float
    top: tuple[tuple[int, float], ...]
