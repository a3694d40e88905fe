"""What a job will take, before it runs: tokens, money, device time, and when it will have ended.

Input is counted or guessed from bytes; output is expected from earlier jobs, else taken as all that
was asked for. Money is integer nano-units, times are integer microseconds. Nothing here does I/O.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from runner.domain.pricing import (
    MICROSECONDS_PER_HOUR,
    TOKENS_PER_QUOTE,
    Price,
    divide_half_even,
)

PPM = 1_000_000
FEWEST_LINES = 100
"""Of an history that is worth more than ``max_tokens``."""


@dataclass(frozen=True, slots=True)
class Range:
    """Three figures in order: one that is rarely undercut, the likely one, one rarely passed."""

    low: int
    likely: int
    high: int

    @classmethod
    def of(cls, low: int, likely: int, high: int) -> "Range":
        """The range of three figures that may not be in order; the likely one stays."""
        return cls(min(low, likely), likely, max(high, likely))


class Basis(StrEnum):
    """What the expected output rests on."""

    SCHEDULE = "schedule"  # earlier jobs of the same schedule
    MODEL = "model"  # earlier jobs of the project with this model
    MAX_TOKENS = "max_tokens"  # no history: all that was asked for


@dataclass(frozen=True, slots=True)
class Volume:
    """What is known of the lines of a job.

    Attributes:
        lines: those that can run.
        input_tokens: of their prompts; ``input_most`` is never passed.
        cached_tokens: of those, what a prompt shares with the one before it, in whole blocks.
        longest: tokens of the longest prompt; 0 until they are counted.
        is_exact: the prompts were counted with the model's own tokenizer.
        bounded_lines: lines that say how much output they take, ``bounded_output`` in all.
        unbounded_lines: the others, for which the context has room for ``unbounded_output``.
        reused_lines: beside those, lines that take the answer of another.
    """

    lines: int = 0
    input_tokens: int = 0
    input_most: int = 0
    cached_tokens: int = 0
    longest: int = 0
    is_exact: bool = False
    bounded_lines: int = 0
    bounded_output: int = 0
    unbounded_lines: int = 0
    unbounded_output: int = 0
    reused_lines: int = 0

    def plus(self, other: "Volume") -> "Volume":
        """Both together; exact only if both are."""
        sums = {
            name: getattr(self, name) + getattr(other, name)
            for name in Volume.__slots__
            if name not in ("longest", "is_exact")
        }
        return Volume(
            longest=max(self.longest, other.longest),
            is_exact=self.is_exact and other.is_exact,
            **sums,
        )


@dataclass(frozen=True, slots=True)
class Lengths:
    """How long the outputs of earlier jobs were.

    Attributes:
        lines: how many this rests on.
        ratio: of ``max_tokens``, in parts per million, for lines that gave it; None if none did.
        per_line: thousandths of a token for a line that did not; None if there was none.
    """

    lines: int
    ratio: Range | None
    per_line: Range | None
    basis: Basis


@dataclass(frozen=True, slots=True)
class Speed:
    """Device time per token of a model, in thousandths of a microsecond, and who runs it now.

    Input counts without what is found in the cache. ``workers`` are those alive, ``ahead_us`` the
    device time of what is queued before the job.
    """

    input_ns: int
    output_ns: int
    workers: int
    ahead_us: int = 0

    def device_us(self, input_tokens: int, output_tokens: int) -> int:
        """The device time of so many tokens."""
        return (input_tokens * self.input_ns + output_tokens * self.output_ns) // 1000

    def wait_us(self, device_us: int) -> int | None:
        """How long it will be until work of so much device time has ended; None if nobody runs."""
        return (self.ahead_us + device_us) // self.workers if self.workers else None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job will take.

    Attributes:
        lines: those that can run.
        input_tokens: of all prompts; ``input_most`` is never passed, and the same if ``is_exact``.
        cached_tokens: of those, what will probably be found in the cache.
        longest: tokens of the longest prompt; 0 unless ``is_exact``.
        output: tokens; ``output_most`` is all that was asked for, and never passed.
        basis: what ``output`` rests on, with so many ``history_lines``.
        billed: nano-units by the pinned price; ``billed_most`` is never passed.
        run: nano-units of device time; None without a measured speed.
        device_us: None without a measured speed.
        wait_us: from the estimate to the end, with what is queued ahead; None if no worker runs
            the model or its speed is unknown.
        made_at: when, by the database's clock; None for one that is not kept.
        reused_lines: beside ``lines``, those that take the answer of another; they are billed by
            their own price, and use nothing.
    """

    lines: int
    input_tokens: int
    input_most: int
    cached_tokens: int
    longest: int
    is_exact: bool
    output: Range
    output_most: int
    basis: Basis
    history_lines: int
    billed: Range
    billed_most: int
    run: Range | None = None
    device_us: Range | None = None
    wait_us: Range | None = None
    made_at: datetime | None = None
    reused_lines: int = 0


def estimate(
    volume: Volume, price: Price | None, lengths: Lengths | None, speed: Speed | None
) -> Estimate:
    """What the lines of a volume will take; without a price they cost nothing."""
    output, basis = _output(volume, lengths)
    most = volume.bounded_output + volume.unbounded_output
    computed = volume.input_tokens - volume.cached_tokens
    device = None
    if speed is not None:
        device = Range(
            speed.device_us(computed, output.low),
            speed.device_us(computed, output.likely),
            speed.device_us(volume.input_tokens, output.high),
        )
    return Estimate(
        lines=volume.lines,
        input_tokens=volume.input_tokens,
        input_most=volume.input_most,
        cached_tokens=volume.cached_tokens,
        longest=volume.longest,
        is_exact=volume.is_exact,
        output=output,
        output_most=most,
        basis=basis,
        history_lines=lengths.lines if lengths is not None and basis is lengths.basis else 0,
        billed=_billed(volume, output, price),
        billed_most=_most_billed(volume, most, price),
        run=None if device is None or price is None else _run(device, price),
        device_us=device,
        wait_us=None if device is None or speed is None else _wait(device, speed),
        reused_lines=volume.reused_lines,
    )


def _output(volume: Volume, lengths: Lengths | None) -> tuple[Range, Basis]:
    """The expected output of all lines; each kind by its own history, or as all that it may be."""
    known = lengths if lengths is not None and lengths.lines >= FEWEST_LINES else None
    share = known.ratio if known else None
    each = known.per_line if known else None
    bounded = _expected(volume.bounded_output, share, volume.bounded_output, PPM)
    unbounded = _expected(volume.unbounded_output, each, volume.unbounded_lines, 1000)
    rests = (share and volume.bounded_lines) or (each and volume.unbounded_lines)
    output = Range.of(
        bounded.low + unbounded.low,
        bounded.likely + unbounded.likely,
        bounded.high + unbounded.high,
    )
    return output, known.basis if known and rests else Basis.MAX_TOKENS


def _expected(bound: int, history: Range | None, factor: int, unit: int) -> Range:
    """At most ``bound`` tokens: ``factor`` times the history, which is given in ``unit`` parts."""
    if history is None:
        return Range(0, bound, bound)
    return Range(
        min(bound, factor * history.low // unit),
        min(bound, factor * history.likely // unit),
        min(bound, -(-factor * history.high // unit)),
    )


def _billed(volume: Volume, output: Range, price: Price | None) -> Range:
    """At least with all shared prefixes found in the cache, at most with none of them."""
    if price is None:
        return Range(0, 0, 0)
    computed = volume.input_tokens - volume.cached_tokens
    cheap = computed * price.input_nano_per_million
    cheap += volume.cached_tokens * price.cached_nano_per_million
    dear = volume.input_tokens * price.input_nano_per_million
    each = price.output_nano_per_million
    reused = volume.reused_lines * price.reused_nano
    return Range.of(
        reused + divide_half_even(cheap + output.low * each, TOKENS_PER_QUOTE),
        reused + divide_half_even(cheap + output.likely * each, TOKENS_PER_QUOTE),
        reused + divide_half_even(dear + output.high * each, TOKENS_PER_QUOTE),
    )


def _most_billed(volume: Volume, output_most: int, price: Price | None) -> int:
    """What the lines can't pass together: each of them is rounded by half a nano-unit at most."""
    if price is None:
        return 0
    dearest = max(price.input_nano_per_million, price.cached_nano_per_million)
    total = volume.input_most * dearest + output_most * price.output_nano_per_million
    reused = volume.reused_lines * price.reused_nano
    return -(-total // TOKENS_PER_QUOTE) + volume.lines + reused


def _run(device: Range, price: Price) -> Range:
    def cost(device_us: int) -> int:
        return divide_half_even(device_us * price.device_nano_per_hour, MICROSECONDS_PER_HOUR)

    return Range(cost(device.low), cost(device.likely), cost(device.high))


def _wait(device: Range, speed: Speed) -> Range | None:
    waits = [speed.wait_us(device_us) for device_us in (device.low, device.likely, device.high)]
    low, likely, high = waits
    return None if low is None or likely is None or high is None else Range(low, likely, high)
