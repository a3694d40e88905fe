"""The lengths of outputs of several jobs, taken together."""

from collections.abc import Sequence
from dataclasses import dataclass

from runner.domain.estimate import FEWEST_LINES, Range

_LOW, _HIGH = 0.1, 0.9


@dataclass(frozen=True, slots=True)
class JobLengths:
    """What one job shows: its lines, and the spread of its shards around their mean."""

    lines: int
    low: int
    mean: int
    high: int


def pool(jobs: Sequence[JobLengths]) -> tuple[int, Range | None]:
    """How many lines there are, and the range of their outputs; None if they are too few.

    The likely figure is the mean of all lines: it is what a sum over many lines comes to. Low and
    high are the weighted deciles of all three figures of each job, so the spread between jobs
    counts as well as that within them.
    """
    lines = sum(job.lines for job in jobs)
    if lines < FEWEST_LINES:
        return lines, None
    points = sorted((figure, job.lines) for job in jobs for figure in (job.low, job.mean, job.high))
    likely = sum(job.mean * job.lines for job in jobs) // lines
    return lines, Range.of(_quantile(points, _LOW), likely, _quantile(points, _HIGH))


def _quantile(points: Sequence[tuple[int, int]], share: float) -> int:
    """The figure up to which ``share`` of the weight lies."""
    wanted = share * sum(weight for _, weight in points)
    seen = 0
    for figure, weight in points:
        seen += weight
        if seen >= wanted:
            return figure
    return points[-1][0]
