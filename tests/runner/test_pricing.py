"""Money against exact decimals."""

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

from hypothesis import given
from hypothesis import strategies as st

from runner.domain.ids import PriceId, new_uuid
from runner.domain.pricing import Price, Quantities, billed_nano, divide_half_even, run_cost_nano

AMOUNT = st.integers(0, 10**13)
TOKENS = st.integers(0, 10**9)


def rounded(numerator: int, denominator: int) -> int:
    with localcontext() as context:
        context.prec = 80
        exact = Decimal(numerator) / Decimal(denominator)
        return int(exact.quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


@given(st.integers(0, 10**25), st.integers(1, 10**12))
def test_division_rounds_to_nearest_and_ties_to_even(numerator: int, denominator: int) -> None:
    assert divide_half_even(numerator, denominator) == rounded(numerator, denominator)


@given(st.integers(0, 10**12), st.integers(1, 10**6))
def test_a_tie_goes_to_the_even_neighbour(quotient: int, half: int) -> None:
    assert divide_half_even(2 * half * quotient + half, 2 * half) == quotient + quotient % 2


@given(AMOUNT, AMOUNT, AMOUNT, TOKENS, TOKENS, TOKENS)
def test_a_line_is_rounded_once(
    input_price: int, cached_price: int, output_price: int, fresh: int, cached: int, output: int
) -> None:
    price = Price(PriceId(new_uuid()), input_price, cached_price, output_price, 0)
    used = Quantities(prompt_tokens=fresh + cached, cached_tokens=cached, output_tokens=output)
    exact = fresh * input_price + cached * cached_price + output * output_price
    assert billed_nano(price, used) == rounded(exact, 1_000_000)


@given(AMOUNT, st.integers(0, 10**12))
def test_device_time_costs_by_the_hour(hourly: int, device_us: int) -> None:
    price = Price(PriceId(new_uuid()), 0, 0, 0, hourly)
    cost = run_cost_nano(price, Quantities(device_us=device_us))
    assert cost == rounded(device_us * hourly, 3_600_000_000)
