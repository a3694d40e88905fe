"""The estimate of a job that names several models, from those of its models."""

from collections.abc import Callable, Sequence
from functools import reduce

from runner.domain.estimate import Basis, Estimate, Range

_WEAKEST = (Basis.SCHEDULE, Basis.MODEL, Basis.MAX_TOKENS)
_SUMS = (
    "lines",
    "input_tokens",
    "input_most",
    "cached_tokens",
    "output_most",
    "billed_most",
    "reused_lines",
)


def together(parts: Sequence[Estimate]) -> Estimate:
    """The estimates of the models of one job as one. Each model has workers of its own, so the end
    is that of the last; it is unknown where one of them is.

    Args:
        parts: at least one.
    """
    return reduce(_both, parts)


def _both(one: Estimate, other: Estimate) -> Estimate:
    basis = max(one.basis, other.basis, key=_WEAKEST.index)
    lines = one.history_lines + other.history_lines
    return Estimate(
        longest=max(one.longest, other.longest),
        is_exact=one.is_exact and other.is_exact,
        output=_plus(one.output, other.output),
        basis=basis,
        history_lines=0 if basis is Basis.MAX_TOKENS else lines,
        billed=_plus(one.billed, other.billed),
        run=_known(_plus, one.run, other.run),
        device_us=_known(_plus, one.device_us, other.device_us),
        wait_us=_known(_later, one.wait_us, other.wait_us),
        made_at=one.made_at,
        **{name: getattr(one, name) + getattr(other, name) for name in _SUMS},
    )


def _known(
    how: Callable[[Range, Range], Range], one: Range | None, other: Range | None
) -> Range | None:
    return None if one is None or other is None else how(one, other)


def _plus(one: Range, other: Range) -> Range:
    return Range(one.low + other.low, one.likely + other.likely, one.high + other.high)


def _later(one: Range, other: Range) -> Range:
    """When both have ended."""
    return Range(max(one.low, other.low), max(one.likely, other.likely), max(one.high, other.high))
