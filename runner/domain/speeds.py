"""Device time per token, out of what finished lines took.

The share of device time of a line is modelled as a price for each computed token of its prompt and
another for each token of its output, fitted by least squares without a constant. Where the lines
are too much alike to tell the two apart, or one would be negative, all tokens cost the same.
"""

from dataclasses import dataclass

_ALIKE = 1e-6  # of a determinant of 1: the lines lie on one straight


@dataclass(frozen=True, slots=True)
class Samples:
    """Sums over lines: computed input tokens x, output tokens y, device microseconds t."""

    x: float
    y: float
    t: float
    xx: float
    xy: float
    yy: float
    xt: float
    yt: float


def fit_speed(seen: Samples) -> tuple[int, int] | None:
    """Nanoseconds for each computed input token and for each output token; None without any.

    Scaled so that the lines together take exactly what they took.
    """
    if seen.x + seen.y <= 0 or seen.t <= 0:
        return None
    determinant = seen.xx * seen.yy - seen.xy * seen.xy
    per_input = per_output = 1.0
    if determinant > _ALIKE * seen.xx * seen.yy:
        slope_x = seen.xt * seen.yy - seen.yt * seen.xy
        slope_y = seen.yt * seen.xx - seen.xt * seen.xy
        if slope_x > 0 and slope_y > 0:
            per_input, per_output = slope_x, slope_y
    scale = 1000 * seen.t / (per_input * seen.x + per_output * seen.y)
    return max(1, round(per_input * scale)), max(1, round(per_output * scale))
