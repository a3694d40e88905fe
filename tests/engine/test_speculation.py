"""How much is guessed: by luck so far, by what a guess costs, and by what a request asks for."""

from dataclasses import replace

import pytest

from engine.logit_edits import LogitEdits
from engine.pooling import PooledStates, Pooling, PoolingParams
from engine.proposer import NgramProposer
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.speculation import LEAST_NEEDED, MOST_NEEDED, Speculation
from engine.step_plan import StepPlan

LOOP = [1, 2, 3] * 4
GREEDY = SamplingParams(max_tokens=100)


def looping(params: SamplingParams = GREEDY, hold_rate: float = 1.0) -> Request:
    request = Request("r", LOOP, params, edits=LogitEdits.of(params, LOOP, [0]))
    request.proposer = NgramProposer()
    request.proposer.hold_rate = hold_rate
    return request


def speculation(needed: float = LEAST_NEEDED, most: int = 7) -> Speculation:
    """One that has measured steps by which a guess must hold with this probability."""
    made = Speculation(most)
    made._token_us, made._row_us = 1_000 * needed, 1_000
    assert made.needed == pytest.approx(needed)
    return made


def test_off_it_does_nothing_at_all() -> None:
    off, request = speculation(most=0), looping()
    request.proposer = None
    plan = StepPlan(budget=10)
    plan.add(request, 1)
    off.guess(plan, others_wait=False)
    assert off.propose(request, 10) == request.guesses == []
    assert request.proposer is None
    assert (plan.num_tokens, plan.budget) == ([1], 9)


def test_nothing_is_guessed_before_a_step_was_measured_unless_it_is_nearly_sure() -> None:
    assert Speculation(7).needed == MOST_NEEDED
    assert Speculation(7).propose(looping(hold_rate=0.9), 99) == []


@pytest.mark.parametrize(
    ("hold_rate", "needed", "count"),
    [(0.5, 0.5, 1), (0.5, 0.51, 0), (0.5, 0.25, 2), (0.9, 0.5, 6), (0.99, 0.5, 7), (0.04, 0.05, 0)],
)
def test_each_guess_must_be_worth_what_it_costs(
    hold_rate: float, needed: float, count: int
) -> None:
    found = speculation(needed).propose(looping(hold_rate=hold_rate), 99)
    assert found == (LOOP * 2)[:count]


@pytest.mark.parametrize(("most", "room", "count"), [(3, 99, 3), (7, 2, 2), (7, 0, 0)])
def test_no_more_is_guessed_than_is_allowed_and_fits(most: int, room: int, count: int) -> None:
    assert len(speculation(most=most).propose(looping(), room)) == count


@pytest.mark.parametrize(("made", "count"), [(0, 4), (1, 3), (3, 1), (4, 0)])
def test_no_more_is_guessed_than_may_still_come(made: int, count: int) -> None:
    request = looping(SamplingParams(max_tokens=5))
    for index in range(made):
        request.append(LOOP[index])
    assert len(speculation().propose(request, 99)) == count


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.7},
        {"logprobs": 0},
        {"logit_bias": {3: 1.0}},
        {"min_tokens": 3},
        {"presence_penalty": 0.1},
        {"frequency_penalty": 0.1},
        {"repetition_penalty": 1.1},
    ],
)
def test_only_what_takes_its_likeliest_token_guesses(other: dict[str, object]) -> None:
    request = looping(replace(GREEDY, **other))  # type: ignore[arg-type]
    assert speculation().propose(request, 99) == []


def test_a_request_guesses_once_it_may_end() -> None:
    request = looping(replace(GREEDY, min_tokens=2))
    for token_id in LOOP[:2]:
        assert speculation().propose(request, 99) == []
        request.append(token_id)
    assert len(speculation().propose(request, 99)) == 7


def test_pooled_states_are_not_guessed() -> None:
    request = looping()
    request.pooled = PooledStates(PoolingParams(Pooling.LAST))
    assert speculation().propose(request, 99) == []


def test_prompts_leave_half_of_the_room_and_rows_are_served_in_order() -> None:
    for others_wait, expected in [(False, [7, 7, 5, 0]), (True, [7, 2, 0, 0])]:
        plan = StepPlan(budget=23)
        for _ in range(4):
            plan.add(looping(), 1)
        speculation().guess(plan, others_wait)
        assert [len(request.guesses) for request in plan.requests] == expected
        assert plan.num_tokens == [1 + guessed for guessed in expected]
        assert plan.budget == 23 - sum(plan.num_tokens)


def test_a_row_that_fails_stops_guessing_and_learns_on_without_cost() -> None:
    made, request = speculation(needed=0.4), looping(hold_rate=0.5)
    for _ in range(3):
        guesses = made.propose(request, 99)
        if not guesses:
            break
        made.learn(request, len(guesses), 0)
        request.append(LOOP[request.num_output_tokens % 3])
    assert made.propose(request, 99) == []
    for _ in range(20):  # what it would have guessed holds from now on
        request.append(LOOP[request.num_output_tokens % 3])
        if made.propose(request, 99):
            break
    assert request.proposer is not None
    assert request.proposer.hold_rate >= 0.4
    assert request.num_output_tokens < 12


def test_luck_drifts_back_only_where_nothing_is_found() -> None:
    request = Request("r", [1, 2, 3, 4], GREEDY)
    request.proposer = NgramProposer()
    request.proposer.hold_rate = 0.1
    assert speculation().propose(request, 99) == []
    assert 0.1 < request.proposer.hold_rate < 0.12


def test_what_a_guess_must_promise_follows_from_the_steps() -> None:
    made = Speculation(7)
    made.took(10_000, 100)  # a full step: 100 us a token
    assert made.needed == MOST_NEEDED  # and as much a row: nothing to gain
    for _ in range(40):
        made.took(4_000, 4)  # few rows: 1,000 us each
    assert made.needed == pytest.approx(0.1 * 1.01**40, rel=1e-2)
    request = looping()
    made.learn(request, 4, 1)
    made.took(4_000, 8)  # three of eight tokens came to nothing
    assert made._row_us == pytest.approx(960, rel=1e-2)


def test_a_machine_that_slows_down_is_followed() -> None:
    made = Speculation(7)
    made.took(10_000, 100)
    for _ in range(300):
        made.took(100_000, 100)
    assert made._token_us == pytest.approx(1_000)


def test_a_step_without_requests_tells_nothing() -> None:
    made = Speculation(7)
    made.took(500, 0)
    assert made.needed == MOST_NEEDED
    made.took(500, 5)
    made.took(500, 0)
    assert made._row_us == 100
