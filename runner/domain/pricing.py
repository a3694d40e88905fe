"""Money: integer nano-units of the currency, rounded once per line, half to even.

A price list quotes nano-units per 1,000,000 tokens or lines and per hour of device time, so every
product below is an integer and only one division happens per line and figure. Sums of lines are
exact.
"""

from dataclasses import dataclass

from runner.domain.ids import PriceId

NANO = 1_000_000_000
TOKENS_PER_QUOTE = 1_000_000
LINES_PER_QUOTE = 1_000_000
MICROSECONDS_PER_HOUR = 3_600_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """One version of a model's price list (nano-units per million tokens; per device hour; per
    million lines that take the answer of another)."""

    id: PriceId
    input_nano_per_million: int
    cached_nano_per_million: int
    output_nano_per_million: int
    device_nano_per_hour: int
    reused_nano_per_million: int = 0

    @property
    def reused_nano(self) -> int:
        """What a line is billed that takes the answer of another, whatever its tokens."""
        return divide_half_even(self.reused_nano_per_million, LINES_PER_QUOTE)


@dataclass(frozen=True, slots=True)
class Quantities:
    """What one accepted line used. ``prompt_tokens`` includes ``cached_tokens``."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    device_us: int = 0


def billed_nano(price: Price, used: Quantities) -> int:
    """What the price list asks for the line, in nano-units."""
    total = (
        (used.prompt_tokens - used.cached_tokens) * price.input_nano_per_million
        + used.cached_tokens * price.cached_nano_per_million
        + used.output_tokens * price.output_nano_per_million
    )
    return divide_half_even(total, TOKENS_PER_QUOTE)


def run_cost_nano(price: Price, used: Quantities) -> int:
    """What the line's share of device time cost to run, in nano-units."""
    return divide_half_even(used.device_us * price.device_nano_per_hour, MICROSECONDS_PER_HOUR)


def divide_half_even(numerator: int, denominator: int) -> int:
    """Integer division rounding to nearest, ties to even (numerator ≥ 0, denominator > 0)."""
    quotient, rest = divmod(numerator, denominator)
    twice = 2 * rest
    if twice > denominator or (twice == denominator and quotient % 2 == 1):
        return quotient + 1
    return quotient
