"""The arithmetic of estimates: tokens, money and time out of volumes, histories and speeds."""

from hypothesis import given
from hypothesis import strategies as st

from runner.domain.estimate import (
    FEWEST_LINES,
    PPM,
    Basis,
    Lengths,
    Range,
    Speed,
    Volume,
    estimate,
)
from runner.domain.ids import PriceId, new_uuid
from runner.domain.pricing import Price, Quantities, billed_nano

PRICE = Price(PriceId(new_uuid()), 50_000_000, 12_500_000, 200_000_000, 3_600_000_000)
VOLUME = Volume(
    lines=10,
    input_tokens=3000,
    input_most=3000,
    cached_tokens=960,
    longest=400,
    is_exact=True,
    bounded_lines=10,
    bounded_output=1000,
)
RATIO = Range(200_000, 500_000, 800_000)


def history(ratio: Range | None = RATIO, per_line: Range | None = None) -> Lengths:
    return Lengths(FEWEST_LINES, ratio, per_line, Basis.MODEL)


def test_without_a_history_all_that_was_asked_for_is_expected() -> None:
    told = estimate(VOLUME, PRICE, None, None)
    assert (told.output, told.output_most) == (Range(0, 1000, 1000), 1000)
    assert (told.basis, told.history_lines) == (Basis.MAX_TOKENS, 0)


def test_a_history_tells_which_share_of_max_tokens_is_used() -> None:
    told = estimate(VOLUME, PRICE, history(), None)
    assert (told.output, told.output_most) == (Range(200, 500, 800), 1000)
    assert (told.basis, told.history_lines) == (Basis.MODEL, FEWEST_LINES)


def test_a_history_of_too_few_lines_counts_for_nothing() -> None:
    few = Lengths(FEWEST_LINES - 1, RATIO, None, Basis.MODEL)
    told = estimate(VOLUME, PRICE, few, None)
    assert (told.output.likely, told.basis, told.history_lines) == (1000, Basis.MAX_TOKENS, 0)


def test_lines_without_a_bound_go_by_tokens_per_line() -> None:
    volume = Volume(lines=4, unbounded_lines=4, unbounded_output=4000)
    told = estimate(volume, PRICE, history(None, Range(1_500, 20_000, 5_000_000)), None)
    assert told.output == Range(6, 80, 4000)  # never more than there is room for
    assert told.basis is Basis.MODEL


def test_a_history_of_the_other_kind_of_lines_does_not_help() -> None:
    told = estimate(VOLUME, PRICE, history(None, Range(1000, 1000, 1000)), None)
    assert (told.output.likely, told.basis) == (1000, Basis.MAX_TOKENS)


def test_the_cache_makes_the_likely_price_lower_but_not_the_highest() -> None:
    told = estimate(VOLUME, PRICE, history(), None)
    likely = Quantities(prompt_tokens=3000, cached_tokens=960, output_tokens=500)
    dearest = Quantities(prompt_tokens=3000, output_tokens=800)
    assert told.billed.likely == billed_nano(PRICE, likely)
    assert told.billed.high == billed_nano(PRICE, dearest)


def test_time_is_device_time_and_the_queue_shared_by_the_workers() -> None:
    speed = Speed(input_ns=1000, output_ns=10_000, workers=2, ahead_us=1000)
    told = estimate(VOLUME, PRICE, history(), speed)
    assert told.device_us == Range(2040 + 2000, 2040 + 5000, 3000 + 8000)
    assert told.wait_us == Range(2520, 4020, 6000)
    assert told.run == Range(4040, 7040, 11000)  # a nano-unit a microsecond


def test_without_a_worker_nobody_knows_the_end() -> None:
    told = estimate(VOLUME, PRICE, history(), Speed(1000, 10_000, workers=0))
    assert told.device_us is not None
    assert told.wait_us is None


def test_without_a_price_nothing_is_billed() -> None:
    told = estimate(VOLUME, None, None, Speed(1, 1, 1))
    assert (told.billed, told.billed_most, told.run) == (Range(0, 0, 0), 0, None)


def test_the_most_that_is_billed_is_never_passed_however_lines_are_rounded() -> None:
    price = Price(PriceId(new_uuid()), 500_000, 0, 500_000, 0)  # half a nano-unit a token
    lines = [Quantities(prompt_tokens=1, output_tokens=2)] * 3
    volume = Volume(lines=3, input_tokens=3, input_most=3, bounded_lines=3, bounded_output=6)
    told = estimate(volume, price, None, None)
    assert sum(billed_nano(price, line) for line in lines) <= told.billed_most


@given(st.lists(st.integers(0, 2 * PPM), min_size=3, max_size=3), st.integers(0, 10**7))
def test_whatever_the_history_says_the_figures_are_in_order(shares: list[int], bound: int) -> None:
    volume = Volume(lines=7, input_tokens=70, input_most=70, bounded_lines=7, bounded_output=bound)
    told = estimate(volume, PRICE, history(Range.of(*shares)), Speed(3, 5, 1))
    for figure in (told.output, told.billed, told.device_us, told.wait_us):
        assert figure is not None
        assert figure.low <= figure.likely <= figure.high
    assert told.output.high <= told.output_most
    assert told.billed.high <= told.billed_most
