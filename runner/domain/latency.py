"""Latencies as histograms: sums over lines that can themselves be added, over days and jobs.

A bucket spans an eighth of an octave, so that a percentile read from one is right to 5 %. (The
frozen account of a job has exact ones.)
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

PER_OCTAVE = 8
SHARES = (0.5, 0.9, 0.99)


class Measure(IntEnum):
    """What is measured of a line; the numbers are stored."""

    QUEUE = 0
    FIRST_TOKEN = 1
    PER_TOKEN = 2
    TOTAL = 3


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds; None when no line has finished."""

    p50: int | None
    p90: int | None
    p99: int | None


NO_PERCENTILES = Percentiles(None, None, None)


def middle_of(bucket: int) -> int:
    """The time, in microseconds, that stands for all of a bucket: its geometric middle."""
    return round(math.exp2((bucket + 0.5) / PER_OCTAVE))


def percentiles_of(histogram: Mapping[int, int]) -> Percentiles:
    """Percentiles of the lines counted by bucket."""
    total = sum(histogram.values())
    if total == 0:
        return NO_PERCENTILES
    return Percentiles(*(middle_of(_bucket_at(histogram, total, share)) for share in SHARES))


def _bucket_at(histogram: Mapping[int, int], total: int, share: float) -> int:
    """The bucket of the first line at which the share is reached."""
    wanted, seen = math.ceil(share * total), 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= wanted:
            return bucket
    raise AssertionError("the shares are at most 1")
