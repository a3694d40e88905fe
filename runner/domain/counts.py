"""What counting the tokens of lines tells: of a shard, and added up of a job."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from runner.domain.defaults import NO_DEFAULTS, Defaults
from runner.domain.estimate import Volume
from runner.domain.leases import ItemInput

TOO_LONG_KEPT = 20
"""Line numbers of too long lines that are kept for each shard."""


@dataclass(frozen=True, slots=True)
class Count:
    """What some lines amount to. Lines that a worker will refuse have no part in the sums.

    Attributes:
        lines: those that can run.
        input_tokens: of all their prompts, shortened where the line wants that.
        cached_tokens: of those, whole blocks that a prompt shares with the one before it.
        longest: tokens of the longest prompt.
        refused: lines that the model cannot take for another reason than their length.
        too_long: lines whose prompt leaves no room for an answer.
        too_long_idx: the first of them, by their numbers in the job.
        bounded_lines: lines that say how much output they take, at most ``bounded_output`` in all.
        unbounded_lines: the others, for which the context has room for ``unbounded_output``.
    """

    lines: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    longest: int = 0
    refused: int = 0
    too_long: int = 0
    too_long_idx: tuple[int, ...] = ()
    bounded_lines: int = 0
    bounded_output: int = 0
    unbounded_lines: int = 0
    unbounded_output: int = 0

    def __add__(self, other: "Count") -> "Count":
        """Both together."""
        return Count(
            lines=self.lines + other.lines,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            longest=max(self.longest, other.longest),
            refused=self.refused + other.refused,
            too_long=self.too_long + other.too_long,
            too_long_idx=(self.too_long_idx + other.too_long_idx)[:TOO_LONG_KEPT],
            bounded_lines=self.bounded_lines + other.bounded_lines,
            bounded_output=self.bounded_output + other.bounded_output,
            unbounded_lines=self.unbounded_lines + other.unbounded_lines,
            unbounded_output=self.unbounded_output + other.unbounded_output,
        )

    def volume(self) -> Volume:
        """The same as what an estimate goes by."""
        return Volume(
            lines=self.lines,
            input_tokens=self.input_tokens,
            input_most=self.input_tokens,
            cached_tokens=self.cached_tokens,
            longest=self.longest,
            is_exact=True,
            bounded_lines=self.bounded_lines,
            bounded_output=self.bounded_output,
            unbounded_lines=self.unbounded_lines,
            unbounded_output=self.unbounded_output,
        )


@dataclass(frozen=True, slots=True)
class LineKind:
    """What the lines of one job have in common."""

    endpoint: str
    defaults: Defaults = NO_DEFAULTS


class LineCounter(Protocol):
    """Counts the lines of one model, as its engine would see them."""

    def count(
        self, kind: LineKind, lines: Sequence[ItemInput], before: ItemInput | None = None
    ) -> Count:
        """Count some lines in the order in which they run, after the line ``before`` them."""


class OpenCounter(Protocol):
    """Opens the counter of a model."""

    def __call__(self, path: str, context: int) -> LineCounter:
        """The counter of the model of a path that holds ``context`` tokens."""
