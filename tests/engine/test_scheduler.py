"""The scheduler without a device: a step is simulated by recording what was planned."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import FEWEST_ENDED
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.request import Request, RequestStatus
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.speculation import Speculation
from engine.step_plan import StepPlan

BLOCK = 4
FINISHED, RUNNING, WAITING = RequestStatus.FINISHED, RequestStatus.RUNNING, RequestStatus.WAITING


class Bench:
    """A scheduler over its block manager, and a model that answers by the place in the output.

    With one token id always, unless it is told otherwise.
    """

    def __init__(
        self, num_blocks: int = 64, speculation: Speculation | None = None, **overrides: object
    ) -> None:
        options: dict[str, object] = {"block_size": BLOCK, "watermark": 0.0}
        config = EngineConfig(model=Path("none"), **(options | overrides))
        self.blocks = BlockManager(num_blocks, BLOCK, config.enable_prefix_caching)
        self.scheduler = Scheduler(config, self.blocks, speculation=speculation)
        self.clock = 0
        self.answer: Callable[[int], int] = lambda place: 7

    def add(self, name: str, prompt: list[int], max_tokens: int = 4, priority: int = 0) -> Request:
        request = Request(name, prompt, SamplingParams(max_tokens=max_tokens), priority)
        self.scheduler.add(request)
        return request

    def expect_short_outputs(self, max_tokens: int) -> None:
        """Teach the scheduler that outputs with this limit end after one token."""
        for index in range(FEWEST_ENDED):
            short = Request(str(index), [1], SamplingParams(max_tokens=max_tokens))
            short.token_ids.append(7)
            self.scheduler.lengths.record(short, was_cut=False)

    def step(self) -> StepPlan:
        self.clock += 1
        plan = self.scheduler.schedule(self.clock)
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            self.scheduler.record(request, num_tokens - len(request.guesses))
            if not request.num_uncomputed_tokens:
                self._answer(request)
            self.scheduler.end_guesses(request)
            if request.num_output_tokens == request.params.max_tokens:
                self.scheduler.remove(request)
        self.scheduler.check_integrity()
        return plan

    def _answer(self, request: Request) -> None:
        """Append the next token, and one more for each guess that holds."""
        request.token_ids.append(self.answer(request.num_output_tokens))
        for guess in request.guesses:
            if request.token_ids[-1] != guess:
                break
            self.scheduler.record(request, 1)
            request.token_ids.append(self.answer(request.num_output_tokens))

    def order_of_ends(self) -> list[str]:
        """Step until nothing is left; names in the order in which they ended."""
        ended: list[str] = []
        while self.scheduler.running or self.scheduler.num_waiting:
            ended += [r.request_id for r in self.step().requests if r.status is FINISHED]
        return ended

    def planned(self, plan: StepPlan) -> dict[str, int]:
        names = [request.request_id for request in plan.requests]
        return dict(zip(names, plan.num_tokens, strict=True))


def distinct(start: int, length: int) -> list[int]:
    return list(range(start * 1000, start * 1000 + length))


def test_step_never_passes_the_token_budget() -> None:
    bench = Bench(max_num_batched_tokens=10)
    for index in range(5):
        bench.add(str(index), distinct(index, 7))
    plan = bench.step()
    assert bench.planned(plan) == {"0": 7, "1": 3}


def test_long_prompt_is_capped_and_does_not_block_short_ones() -> None:
    bench = Bench(max_num_batched_tokens=16, long_prefill_tokens=6)
    bench.add("long", distinct(1, 40))
    bench.add("short", distinct(2, 3))
    assert bench.planned(bench.step()) == {"long": 6, "short": 3}
    assert bench.planned(bench.step()) == {"short": 1, "long": 6}


def test_decodes_go_before_prefills_when_the_budget_is_tight() -> None:
    bench = Bench(max_num_batched_tokens=5, long_prefill_tokens=4)
    bench.add("long", distinct(1, 30))
    bench.add("short", distinct(2, 1))
    assert list(bench.planned(bench.step())) == ["long", "short"]
    assert list(bench.planned(bench.step())) == ["short", "long"]


def test_higher_priority_starts_first_and_equals_in_order_of_arrival() -> None:
    bench = Bench(max_num_seqs=1)
    order = []
    for name, priority in [("a", 0), ("b", 0), ("urgent", 5), ("c", 0)]:
        bench.add(name, distinct(ord(name[0]), 3), max_tokens=1, priority=priority)
    while bench.scheduler.num_waiting:
        order += [request.request_id for request in bench.step().requests]
    assert order == ["urgent", "a", "b", "c"]


def test_an_urgent_request_takes_the_row_of_a_less_urgent_one_and_the_least_computed() -> None:
    bench = Bench(max_num_seqs=2)
    old, young = (bench.add(name, distinct(place, 9), 50) for name, place in (("o", 1), ("y", 99)))
    bench.step()
    bench.scheduler.remove(young)
    young = bench.add("young", distinct(60, 5), 50)
    bench.step()
    urgent = bench.add("urgent", distinct(30, 3), 2, priority=1)
    assert "urgent" in bench.planned(bench.step())
    assert (old.status, young.status) == (RUNNING, WAITING)
    equal = bench.add("equal", distinct(200, 3), 2, priority=0)
    bench.step()
    assert urgent.status is FINISHED
    assert equal.status is WAITING  # nobody gives way to an equal
    bench.step()
    assert young.status is RUNNING
    assert young.num_preemptions == 1


def test_an_urgent_request_gets_the_blocks_and_the_tokens_of_less_urgent_ones() -> None:
    bench = Bench(num_blocks=4, max_num_seqs=8, max_num_batched_tokens=16)
    low = bench.add("low", distinct(0, 3 * BLOCK), 3)
    bench.step()
    urgent = bench.add("urgent", distinct(100, 3 * BLOCK), 2, priority=1)
    while urgent.num_output_tokens == 0:
        assert "urgent" in bench.planned(bench.step())
    assert low.num_preemptions == 1
    assert bench.order_of_ends() == ["urgent", "low"]


def test_a_prefill_that_is_urgent_goes_before_another() -> None:
    bench = Bench(max_num_batched_tokens=8, long_prefill_tokens=8)
    low, high = bench.add("low", distinct(0, 24)), bench.add("high", distinct(50, 24), priority=1)
    bench.step()
    while high.num_uncomputed_tokens > 1 and not high.num_output_tokens:
        bench.step()
    assert low.num_computed_tokens == 0


def test_longest_outputs_start_first_at_the_tail_and_only_there() -> None:
    bench = Bench(max_num_seqs=1)
    lengths = {"a": 10, "b": 50, "c": 30, "d": 50}
    for name, length in lengths.items():
        bench.add(name, distinct(ord(name), 3), max_tokens=length)
    bench.add("urgent", distinct(0, 3), max_tokens=1, priority=1)
    bench.scheduler.longest_first = True
    bench.add("late", distinct(1, 3), max_tokens=40)
    assert bench.order_of_ends() == ["urgent", "b", "d", "late", "c", "a"]
    bench.scheduler.longest_first = False
    for name, length in lengths.items():
        bench.add(name, distinct(ord(name), 3), max_tokens=length)
    assert bench.order_of_ends() == ["a", "b", "c", "d"]


def test_longest_first_shortens_the_tail() -> None:
    steps = []
    for longest_first in (False, True):
        bench = Bench(max_num_seqs=4, num_blocks=256)
        for index in range(16):
            bench.add(str(index), distinct(index, 3), max_tokens=4 + index * index % 90)
        bench.scheduler.longest_first = longest_first
        bench.order_of_ends()
        steps.append(bench.clock)
    assert steps[1] < steps[0]


def test_whole_prompt_must_fit_though_it_is_chunked() -> None:
    bench = Bench(num_blocks=10, long_prefill_tokens=4)
    bench.add("first", distinct(1, 24))
    bench.add("second", distinct(2, 24))
    bench.step()
    assert [request.request_id for request in bench.scheduler.running] == ["first"]


def test_admission_leaves_the_watermark_free() -> None:
    bench = Bench(num_blocks=10, watermark=0.2)
    bench.add("first", distinct(1, 20), max_tokens=1)
    bench.add("second", distinct(2, 16), max_tokens=1)
    assert bench.planned(bench.step()) == {"first": 20}


def test_idle_engine_ignores_the_watermark() -> None:
    bench = Bench(num_blocks=10, watermark=0.2)
    bench.add("only", distinct(1, 40), max_tokens=1)
    assert bench.planned(bench.step()) == {"only": 40}


def test_victim_has_the_worst_priority_then_the_least_work() -> None:
    bench = Bench(num_blocks=6)
    bench.expect_short_outputs(20)
    low = bench.add("low", distinct(1, 8), max_tokens=20, priority=-1)
    short = bench.add("short", distinct(2, 4), max_tokens=20)
    long = bench.add("long", distinct(3, 8), max_tokens=20)
    bench.step()
    plan = bench.step()
    assert plan.num_preempted == 1
    assert low.status is RequestStatus.WAITING
    while short.status is RequestStatus.RUNNING:
        bench.step()
    assert short.num_preemptions == 1
    assert long.num_preemptions == 0


def test_step_with_a_preemption_admits_nobody() -> None:
    bench = Bench(num_blocks=4)
    bench.expect_short_outputs(20)
    bench.add("a", distinct(1, 8), max_tokens=20)
    bench.add("b", distinct(2, 7), max_tokens=20)
    bench.step()
    small = bench.add("small", [5], max_tokens=1)
    plan = bench.step()
    assert plan.num_preempted
    assert small.status is RequestStatus.WAITING


def test_preempted_request_goes_before_later_arrivals() -> None:
    bench = Bench(num_blocks=4, enable_prefix_caching=False)
    bench.expect_short_outputs(6)
    bench.add("a", distinct(1, 8), max_tokens=6)
    victim = bench.add("b", distinct(2, 7), max_tokens=6)
    bench.step()
    bench.add("late", distinct(3, 8), max_tokens=6)
    started = []
    for _ in range(40):
        plan = bench.step()
        started += [r.request_id for r in plan.requests if r.request_id not in started]
        if not bench.scheduler.running and not bench.scheduler.num_waiting:
            break
    assert victim.num_preemptions >= 1
    assert victim.num_recomputed_tokens > 0
    assert started.index("b") < started.index("late")


def test_request_larger_than_the_pool_is_reported_not_kept_waiting() -> None:
    bench = Bench(num_blocks=2)
    request = bench.add("huge", distinct(1, 30))
    plan = bench.step()
    assert plan.stuck is request


def test_request_that_outgrows_the_pool_alone_is_reported() -> None:
    bench = Bench(num_blocks=2)
    request = bench.add("grows", distinct(1, 7), max_tokens=30)
    for _ in range(10):
        plan = bench.step()
        if plan.stuck is not None:
            break
    assert plan.stuck is request


def test_one_leader_computes_a_shared_prefix_and_siblings_wait() -> None:
    bench = Bench(max_num_batched_tokens=64, long_prefill_tokens=8)
    shared = distinct(1, 16)
    requests = [bench.add(str(i), [*shared, 9000 + i]) for i in range(4)]
    other = bench.add("other", distinct(2, 5))
    assert bench.planned(bench.step()) == {"0": 8, "other": 5}
    assert bench.planned(bench.step()) == {"other": 1, "0": 8}
    assert bench.planned(bench.step()) == {"0": 1, "other": 1, "1": 1, "2": 1, "3": 1}
    assert [request.num_cached_tokens for request in requests] == [0, 16, 16, 16]
    assert other.num_cached_tokens == 0


def test_siblings_start_when_their_leader_is_removed() -> None:
    bench = Bench(long_prefill_tokens=4)
    shared = distinct(1, 16)
    leader = bench.add("leader", [*shared, 1])
    sibling = bench.add("sibling", [*shared, 2])
    bench.step()
    bench.scheduler.remove(leader)
    bench.step()
    assert sibling.status is RequestStatus.RUNNING
    assert sibling.num_cached_tokens == 4


def run_until(bench: Bench, request: Request) -> None:
    while request.status is not FINISHED:
        bench.step()


def prefix_under_pressure(bench: Bench, big_blocks: int) -> Request:
    """A leader and then another end, a big one needs room, and a follower of the leader waits."""
    shared = distinct(1, 2 * BLOCK)
    leader = bench.add("leader", [*shared, 1], max_tokens=1)
    other = bench.add("other", distinct(2, 2 * BLOCK + 1), max_tokens=1)
    big = bench.add("big", distinct(3, big_blocks * BLOCK), max_tokens=1)
    follower = bench.add("follower", [*shared, 2], max_tokens=1)
    for request in (leader, other, big):
        run_until(bench, request)
    return follower


def test_blocks_that_a_waiting_request_needs_are_given_up_last() -> None:
    bench = Bench(num_blocks=8, max_num_seqs=1)
    follower = prefix_under_pressure(bench, big_blocks=6)
    run_until(bench, follower)
    assert follower.num_cached_tokens == 2 * BLOCK


def test_blocks_that_are_waited_for_never_stop_a_running_request() -> None:
    bench = Bench(num_blocks=8, max_num_seqs=1)
    follower = prefix_under_pressure(bench, big_blocks=8)
    run_until(bench, follower)
    assert follower.num_cached_tokens < 2 * BLOCK
    assert bench.scheduler.num_preemptions == 0
    assert bench.blocks.num_free_blocks == 8


def test_blocks_are_as_good_as_any_once_nobody_waits_for_them() -> None:
    bench = Bench(num_blocks=8, max_num_seqs=1)
    shared = distinct(1, 2 * BLOCK)
    run_until(bench, bench.add("leader", [*shared, 1], max_tokens=1))
    bench.scheduler.remove(bench.add("follower", [*shared, 2]))
    other = bench.add("other", distinct(2, 2 * BLOCK + 1), max_tokens=1)
    run_until(bench, other)
    run_until(bench, bench.add("big", distinct(3, 6 * BLOCK), max_tokens=1))
    again = bench.add("again", [*distinct(2, 2 * BLOCK), 9], max_tokens=1)
    late = bench.add("late", [*shared, 3], max_tokens=1)
    run_until(bench, again)
    run_until(bench, late)
    assert again.num_cached_tokens == 2 * BLOCK
    assert late.num_cached_tokens == 0


def test_removing_a_waiting_request_keeps_the_order_of_the_others() -> None:
    bench = Bench(max_num_seqs=1)
    requests = [bench.add(str(i), distinct(i, 2), max_tokens=1) for i in range(4)]
    bench.scheduler.remove(requests[1])
    order = []
    while bench.scheduler.num_waiting:
        order += [request.request_id for request in bench.step().requests]
    assert order == ["0", "2", "3"]


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("caching", [False, True])
def test_forced_preemption_still_ends(every: int, caching: bool) -> None:
    bench = Bench(preempt_every=every, long_prefill_tokens=3, enable_prefix_caching=caching)
    requests = [bench.add(str(i), distinct(i, 10)) for i in range(3)]
    for _ in range(500):
        bench.step()
    assert all(request.num_output_tokens == 4 for request in requests)
    assert bench.scheduler.num_preemptions > 0
    assert bench.blocks.num_used_blocks == 0


@settings(max_examples=80, deadline=None)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 14), st.integers(1, 8), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=10,
    ),
    budget=st.integers(1, 12),
    cap=st.integers(1, 12),
    num_blocks=st.integers(6, 14),
    caching=st.booleans(),
)
def test_every_request_ends_and_no_step_breaks_a_limit(
    jobs: list[tuple[int, int, int, bool]], budget: int, cap: int, num_blocks: int, caching: bool
) -> None:
    bench = Bench(
        num_blocks,
        max_num_batched_tokens=budget,
        long_prefill_tokens=cap,
        max_num_seqs=4,
        enable_prefix_caching=caching,
    )
    requests = []
    for index, (length, max_tokens, priority, is_shared) in enumerate(jobs):
        prompt = distinct(99, length) if is_shared else distinct(index, length)
        requests.append(bench.add(str(index), prompt, max_tokens, priority))
    for _ in range(2000):
        plan = bench.step()
        assert plan.stuck is None
        assert sum(plan.num_tokens) <= budget
        assert all(0 < num_tokens <= cap for num_tokens in plan.num_tokens)
        assert len({id(request) for request in plan.requests}) == len(plan.requests)
        assert len(bench.scheduler.running) <= 4
        if not bench.scheduler.running and not bench.scheduler.num_waiting:
            break
    assert all(r.num_output_tokens == r.params.max_tokens for r in requests)
    assert bench.blocks.num_used_blocks == 0
