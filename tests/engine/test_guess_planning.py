"""Guesses in a plan: they have what nobody else wants, and leave nothing behind."""

import pytest
from bold import BoldSpeculation
from hypothesis import given, settings
from hypothesis import strategies as st
from test_scheduler import BLOCK, Bench, distinct

from engine.pooling import PooledStates, Pooling, PoolingParams
from engine.request import Request, RequestStatus

LOOP = [1, 2, 3] * 3
MOST = 7


def bold_bench(num_blocks: int = 64, **overrides: object) -> Bench:
    """Outputs go on with the loop of `looping`."""
    bench = Bench(num_blocks, BoldSpeculation(MOST), **overrides)
    bench.answer = lambda place: LOOP[place % 3]
    return bench


def looping(bench: Bench, name: str, max_tokens: int = 100, priority: int = 0) -> Request:
    """A request that has computed its prompt and knows one token of its output."""
    request = bench.add(name, LOOP, max_tokens, priority)
    while not request.num_output_tokens:
        bench.step()
    return request


def test_a_decode_guesses_and_what_holds_is_computed() -> None:
    bench = bold_bench()
    request = looping(bench, "r")
    known = request.num_tokens
    assert bench.planned(bench.step()) == {"r": 1 + MOST}
    assert request.num_tokens == known + 1 + MOST
    assert request.num_uncomputed_tokens == 1
    assert request.guesses == []


def test_what_fails_is_not_computed_and_its_blocks_come_back() -> None:
    bench = bold_bench()
    request = looping(bench, "r")
    bench.answer = lambda place: 9 + place
    free, known = bench.blocks.num_free_blocks, request.num_tokens
    assert bench.planned(bench.step()) == {"r": 1 + MOST}
    assert (request.num_tokens, request.num_uncomputed_tokens) == (known + 1, 1)
    assert len(request.block_table) == bench.blocks.blocks_for(known + 1)
    assert free - bench.blocks.num_free_blocks <= 1


def test_without_a_speculation_nobody_guesses() -> None:
    bench = Bench()
    looping(bench, "r")
    assert bench.planned(bench.step()) == {"r": 1}


@pytest.mark.parametrize("max_tokens", [2, 3, 5, 8, 9, 10])
def test_no_guess_passes_the_most_tokens_of_a_request(max_tokens: int) -> None:
    bench = bold_bench()
    request = looping(bench, "r", max_tokens)
    plan = bench.step()
    assert plan.num_tokens == [min(1 + MOST, max_tokens - 1)]
    while request.status is not RequestStatus.FINISHED:
        bench.step()
    assert request.num_output_tokens == max_tokens


def test_guesses_keep_to_the_budget_in_the_order_of_the_rows() -> None:
    bench = bold_bench(max_num_batched_tokens=13)
    for name, priority in [("a", 0), ("b", 0), ("urgent", 1)]:
        looping(bench, name, priority=priority)
    assert bench.planned(bench.step()) == {"urgent": 8, "a": 4, "b": 1}


def test_prompts_have_half_of_what_is_left_and_all_that_guesses_leave() -> None:
    bench = bold_bench(max_num_batched_tokens=21)
    looping(bench, "r")
    bench.add("waiting", distinct(5, 60))
    assert bench.planned(bench.step()) == {"r": 8, "waiting": 13}
    assert bench.planned(bench.step()) == {"r": 8, "waiting": 13}
    bench = bold_bench(max_num_batched_tokens=9)
    looping(bench, "r")
    bench.add("waiting", distinct(5, 60))
    assert bench.planned(bench.step()) == {"r": 5, "waiting": 4}
    assert bench.planned(bench.step()) == {"r": 5, "waiting": 4}


def test_a_guess_takes_no_block_that_another_needs_in_the_step() -> None:
    bench = bold_bench(num_blocks=8)
    request = looping(bench, "r", max_tokens=16)
    assert (request.num_tokens, bench.blocks.num_free_blocks) == (10, 5)
    bench.add("prompt", distinct(5, 4 * BLOCK), max_tokens=1)
    # Of the one block that is left, and of its own last one.
    assert bench.planned(bench.step()) == {"r": 1 + BLOCK + 2, "prompt": 4 * BLOCK}
    assert bench.scheduler.num_preemptions == 0
    assert request.status is RequestStatus.RUNNING


def test_guesses_leave_the_watermark_free() -> None:
    bench = bold_bench(num_blocks=10, watermark=0.6)
    request = looping(bench, "r")
    assert bench.blocks.num_free_blocks == 7
    # One block above the watermark, and what is left of the last one.
    assert bench.planned(bench.step()) == {"r": 1 + 2 + BLOCK}
    assert bench.blocks.num_free_blocks == 6
    full = -request.num_tokens % BLOCK
    assert bench.planned(bench.step()) == {"r": 1 + full}


def test_nobody_is_preempted_for_a_guess() -> None:
    bench = bold_bench(num_blocks=6)
    bench.answer = lambda place: 7
    for name, first in [("a", 1), ("b", 2)]:
        bench.add(name, [first, *[7] * 8], max_tokens=4)
    bench.step()
    assert bench.blocks.num_free_blocks == 0
    assert bench.planned(bench.step()) == {"a": 3, "b": 3}
    assert bench.scheduler.num_preemptions == 0


def test_a_row_that_is_preempted_in_the_step_keeps_no_guesses() -> None:
    bench = bold_bench(max_num_seqs=1, enable_prefix_caching=False)
    request = looping(bench, "low")
    urgent = bench.add("urgent", distinct(5, 3), 1, priority=1)
    plan = bench.scheduler.schedule(9)
    assert plan.requests == [urgent]
    assert (request.status, request.guesses) == (RequestStatus.WAITING, [])
    assert plan.budget == bench.scheduler._config.max_num_batched_tokens - 3


def test_a_step_with_pooled_states_can_verify_nothing() -> None:
    bench = bold_bench()
    looping(bench, "r")
    pooled = Request("pooled", distinct(5, 6), looping(bench, "other").params)
    pooled.pooled = PooledStates(PoolingParams(Pooling.LAST))
    bench.scheduler.add(pooled)
    plan = bench.scheduler.schedule(9)
    assert bench.planned(plan) == {"r": 1, "other": 1, "pooled": 6}
    assert all(request.guesses == [] for request in plan.requests)


@settings(max_examples=80, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 14), st.integers(1, 12), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=8,
    ),
    budget=st.integers(1, 30),
    cap=st.integers(1, 12),
    num_blocks=st.integers(7, 16),
    period=st.integers(1, 5),
    preempt_every=st.sampled_from([0, 3]),
)
def test_with_guesses_every_request_ends_and_no_step_breaks_a_limit(
    jobs: list[tuple[int, int, int, bool]],
    budget: int,
    cap: int,
    num_blocks: int,
    period: int,
    preempt_every: int,
) -> None:
    bench = bold_bench(
        num_blocks,
        max_num_batched_tokens=budget,
        long_prefill_tokens=cap,
        max_num_seqs=4,
        preempt_every=preempt_every,
    )
    bench.answer = lambda place: place % period if place % 11 < 8 else 20 + place
    requests = []
    for index, (length, max_tokens, priority, is_shared) in enumerate(jobs):
        prompt = distinct(99, length) if is_shared else distinct(index, length)
        requests.append(bench.add(str(index), prompt, max_tokens, priority))
    for _ in range(2000):
        plan = bench.step()
        assert plan.stuck is None
        assert sum(plan.num_tokens) <= budget
        assert all(0 < num_tokens <= max(cap, 1 + MOST) for num_tokens in plan.num_tokens)
        for request in bench.scheduler.running:
            assert not request.guesses
            assert len(request.block_table) <= bench.blocks.blocks_for(request.num_tokens)
        if not bench.scheduler.running and not bench.scheduler.num_waiting:
            break
    for request in requests:
        length = request.params.max_tokens
        assert request.output_token_ids == [bench.answer(place) for place in range(length)]
    assert bench.blocks.num_used_blocks == 0
