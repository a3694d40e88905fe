"""Device time per token, found in what lines took."""

from collections.abc import Sequence

import pytest

from runner.domain.estimate import FEWEST_LINES, Range
from runner.domain.lengths import JobLengths, pool
from runner.domain.speeds import Samples, fit_speed


def samples(lines: Sequence[tuple[int, int, float]]) -> Samples:
    return Samples(
        x=sum(x for x, _, _ in lines),
        y=sum(y for _, y, _ in lines),
        t=sum(t for _, _, t in lines),
        xx=sum(x * x for x, _, _ in lines),
        xy=sum(x * y for x, y, _ in lines),
        yy=sum(y * y for _, y, _ in lines),
        xt=sum(x * t for x, _, t in lines),
        yt=sum(y * t for _, y, t in lines),
    )


def test_input_and_output_tokens_are_told_apart() -> None:
    lines = [(x, y, 2.0 * x + 30.0 * y) for x, y in ((100, 5), (300, 1), (20, 50), (7, 7))]
    assert fit_speed(samples(lines)) == (2000, 30_000)


def test_lines_that_are_all_alike_cost_the_same_for_each_token() -> None:
    assert fit_speed(samples([(30, 10, 80.0)] * 5)) == (2000, 2000)


def test_a_cost_is_never_negative() -> None:
    lines = [(100, 1, 10.0), (1, 100, 10.0), (100, 100, 5.0)]
    fitted = fit_speed(samples(lines))
    assert fitted is not None
    assert min(fitted) >= 1


@pytest.mark.parametrize("lines", [[], [(0, 0, 5.0)], [(5, 5, 0.0)]])
def test_nothing_measured_is_no_speed(lines: list[tuple[int, int, float]]) -> None:
    assert fit_speed(samples(lines)) is None


def test_embeddings_have_a_speed_too() -> None:
    assert fit_speed(samples([(10, 0, 20.0), (30, 0, 60.0)])) == (2000, 2000)


def test_few_lines_make_no_history() -> None:
    assert pool([JobLengths(FEWEST_LINES - 1, 1, 2, 3)]) == (FEWEST_LINES - 1, None)
    assert pool([]) == (0, None)


def test_one_job_gives_its_own_spread() -> None:
    assert pool([JobLengths(FEWEST_LINES, 1, 5, 9)]) == (FEWEST_LINES, Range(1, 5, 9))


def test_jobs_that_differ_spread_wider_than_any_of_them() -> None:
    jobs = [JobLengths(1000, 10, 20, 30), JobLengths(3000, 70, 80, 90)]
    assert pool(jobs) == (4000, Range(20, 65, 90))
