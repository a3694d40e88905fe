"""How a line wants its tokens drawn: the fields that chats and completions share, checked."""

from collections.abc import Mapping
from dataclasses import dataclass

from runner.inference.bodies import BadBody, SamplingBody

MAX_LOGPROBS = 20
_MAX_STOPS, _MAX_STOP_LETTERS = 16, 64
_MAX_BIAS_ENTRIES, _MAX_BIAS = 1024, 100
_MAX_PENALTY = 2


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the tokens of each choice of a line.

    Attributes:
        max_tokens: None is as many as the context has room for.
        seed: of the line; each choice has one of its own, made of it.
        logprobs: tell each token's log-probability, with this many of the likeliest; None is off.
    """

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    min_tokens: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    ignore_eos: bool
    logprobs: int | None


def read_sampling(
    body: SamplingBody, max_tokens: int | None, logprobs: int | None, seed: int
) -> Sampling:
    """Check and complete the shared fields; ``seed`` counts where the body names none.

    Raises:
        BadBody: a field is out of its range.
    """
    require(max_tokens is None or max_tokens >= 1, "max_tokens must be at least 1.", "max_tokens")
    min_tokens = body.min_tokens or 0
    require(min_tokens >= 0, "min_tokens must not be negative.", "min_tokens")
    require(
        max_tokens is None or min_tokens <= max_tokens,
        "min_tokens must not be above max_tokens.",
        "min_tokens",
    )
    repetition = _number(body.repetition_penalty, 1.0)
    require(repetition > 0, "repetition_penalty must be above 0.", "repetition_penalty")
    top_p = _number(body.top_p, 1.0)
    require(0 < top_p <= 1, "top_p must be above 0 and at most 1.", "top_p")
    top_k = body.top_k or 0
    require(top_k >= 0, "top_k must not be negative; 0 is off.", "top_k")
    return Sampling(
        max_tokens=max_tokens,
        temperature=_within(body.temperature, 1.0, (0, 2), "temperature"),
        top_p=top_p,
        top_k=top_k,
        min_p=_within(body.min_p, 0.0, (0, 1), "min_p"),
        min_tokens=min_tokens,
        presence_penalty=_penalty(body.presence_penalty, "presence_penalty"),
        frequency_penalty=_penalty(body.frequency_penalty, "frequency_penalty"),
        repetition_penalty=repetition,
        logit_bias=_bias(body.logit_bias or {}),
        seed=seed if body.seed is None else body.seed,
        stop=_stops(body.stop),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        logprobs=logprobs,
    )


def require(fine: bool, message: str, param: str) -> None:
    """Raise BadBody for a value out of its range."""
    if not fine:
        raise BadBody(message, param)


def _number(value: float | None, default: float) -> float:
    return default if value is None else value


def _within(value: float | None, default: float, limits: tuple[int, int], param: str) -> float:
    low, high = limits
    number = _number(value, default)
    require(low <= number <= high, f"{param} must be between {low} and {high}.", param)
    return number


def _penalty(value: float | None, param: str) -> float:
    return _within(value, 0.0, (-_MAX_PENALTY, _MAX_PENALTY), param)


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    """By token id. Whether the model has such a token, only its engine knows."""
    param = "logit_bias"
    require(
        len(bias) <= _MAX_BIAS_ENTRIES, f"{param} has at most {_MAX_BIAS_ENTRIES} entries.", param
    )
    require(
        all(key.isascii() and key.isdigit() and len(key) <= 10 for key in bias),
        f"The keys of {param} are token ids, written as whole numbers.",
        param,
    )
    return {
        int(key): _within(value, 0.0, (-_MAX_BIAS, _MAX_BIAS), param) for key, value in bias.items()
    }


def _stops(stop: str | list[str] | None) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else tuple(stop or ())
    require(len(stops) <= _MAX_STOPS, f"stop has at most {_MAX_STOPS} strings.", "stop")
    require(
        all(0 < len(text) <= _MAX_STOP_LETTERS for text in stops),
        f"Each stop string has 1 to {_MAX_STOP_LETTERS} characters.",
        "stop",
    )
    return stops
