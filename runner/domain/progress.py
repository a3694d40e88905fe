"""An estimate while the job runs: what is done as it was, and the rest as it was expected."""

from dataclasses import dataclass

from runner.domain.estimate import (
    FEWEST_LINES,
    PPM,
    Basis,
    Estimate,
    Lengths,
    Range,
    Speed,
    Volume,
    estimate,
)
from runner.domain.pricing import Price


@dataclass(frozen=True, slots=True)
class Done:
    """The sums of a job's finished lines; ``lines`` are all of them, failed ones included, but for
    the ``reused``, which took the answer of another."""

    lines: int
    succeeded: int
    reused: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    billed_nano: int
    run_cost_nano: int


def progressed(given: Estimate, done: Done, price: Price, speed: Speed | None) -> Estimate:
    """The estimate of the whole job, of which some lines are done.

    Once enough lines are, the likely output of the others goes by theirs, and so does what they
    find in the cache. ``device_us`` and ``wait_us`` are of what is left.
    """
    rest = estimate(_rest(given, done), price, _lengths(given, done), speed)
    return Estimate(
        lines=given.lines,
        input_tokens=done.prompt_tokens + rest.input_tokens,
        input_most=done.prompt_tokens + rest.input_most,
        cached_tokens=done.cached_tokens + rest.cached_tokens,
        longest=given.longest,
        is_exact=given.is_exact,
        output=_plus(rest.output, done.output_tokens),
        output_most=done.output_tokens + rest.output_most,
        basis=given.basis,
        history_lines=given.history_lines,
        billed=_plus(rest.billed, done.billed_nano),
        billed_most=done.billed_nano + rest.billed_most,
        run=None if rest.run is None else _plus(rest.run, done.run_cost_nano),
        device_us=rest.device_us,
        wait_us=rest.wait_us,
        reused_lines=given.reused_lines,
    )


def part_of(given: Estimate, lines: int) -> Volume:
    """What some of the lines of an estimate amount to, by their number."""

    def part(whole: int) -> int:
        return -(-whole * lines // max(1, given.lines))

    return Volume(
        lines=lines,
        input_tokens=part(given.input_tokens),
        input_most=part(given.input_most),
        cached_tokens=part(given.cached_tokens),
        bounded_lines=lines,
        bounded_output=part(given.output_most),
    )


def _rest(given: Estimate, done: Done) -> Volume:
    """The lines that are left: their part of everything, by their number."""
    lines = max(1, given.lines)
    left = max(0, given.lines - done.lines)

    def part(whole: int) -> int:
        return whole * left // lines

    # What was counted exactly leaves exactly the rest.
    tokens = given.input_tokens - done.prompt_tokens if given.is_exact else part(given.input_tokens)
    tokens = max(0, tokens) if left else 0
    cached = part(given.cached_tokens)
    if done.succeeded >= FEWEST_LINES and done.prompt_tokens:
        cached = tokens * done.cached_tokens // done.prompt_tokens
    return Volume(
        lines=left,
        input_tokens=tokens,
        input_most=tokens if given.is_exact else part(given.input_most),
        cached_tokens=min(cached, tokens),
        is_exact=given.is_exact,
        bounded_lines=left,
        bounded_output=-(-given.output_most * left // lines),
        reused_lines=max(0, given.reused_lines - done.reused),
    )


def _lengths(given: Estimate, done: Done) -> Lengths | None:
    """The expected share of all output that was asked for."""
    if not given.output_most:
        return None

    def share(tokens: int, lines: int) -> int:
        return tokens * PPM * given.lines // (given.output_most * max(1, lines))

    expected = Range(*(share(n, given.lines) for n in _figures(given.output)))
    if done.succeeded >= FEWEST_LINES:
        likely = share(done.output_tokens, done.succeeded)
        expected = Range.of(expected.low, likely, expected.high)
    return Lengths(FEWEST_LINES, expected, None, Basis(given.basis))


def _figures(figure: Range) -> tuple[int, int, int]:
    return figure.low, figure.likely, figure.high


def _plus(figure: Range, done: int) -> Range:
    return Range(figure.low + done, figure.likely + done, figure.high + done)
