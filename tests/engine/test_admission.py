"""The forecast of memory, and what it saves: fewer preemptions on a pool that is too small."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.admission import FEWEST_ENDED, WINDOW, Holder, OutputLengths, peak_blocks
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.request import Request
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler

BLOCK = 4


def ended(max_tokens: int, length: int) -> Request:
    request = Request("r", [1], SamplingParams(max_tokens=max_tokens))
    request.token_ids += [7] * length
    return request


def taught(max_tokens: int, lengths: list[int]) -> OutputLengths:
    outputs = OutputLengths()
    for length in lengths:
        outputs.record(ended(max_tokens, length), was_cut=length == max_tokens)
    return outputs


def blocks_by_step(holders: list[Holder]) -> int:
    """The same peak, found by taking every step."""
    peak = 0
    for step in range(max(holder.growth for holder in holders) + 1):
        alive = [holder for holder in holders if holder.growth >= step]
        shared = {block for holder in alive for block in holder.shared}
        own = sum(-(-(h.num_tokens + step) // BLOCK) - len(h.shared) for h in alive)
        peak = max(peak, own + len(shared))
    return peak


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 20), st.integers(1, 30), st.integers(0, 3)), min_size=1, max_size=8
    )
)
@settings(max_examples=200, deadline=None)
def test_peak_is_the_one_that_taking_every_step_finds(parts: list[tuple[int, int, int]]) -> None:
    holders = [
        Holder(growth, tokens, list(range(min(shared, tokens // BLOCK))))
        for growth, tokens, shared in parts
    ]
    assert peak_blocks(holders, BLOCK) == blocks_by_step(holders)


def test_shared_blocks_count_once_until_their_last_holder_ends() -> None:
    early, late = Holder(2, 9, (0, 1)), Holder(12, 9, (0, 1))
    assert peak_blocks([early, late], BLOCK) == 6
    assert peak_blocks([Holder(2, 9), Holder(12, 9)], BLOCK) == 6
    assert peak_blocks([early, Holder(2, 9, (0, 1))], BLOCK) == 4


def test_output_that_only_its_limit_ends_is_known_exactly() -> None:
    lengths = taught(100, [3] * WINDOW)
    request = Request("r", [1], SamplingParams(max_tokens=100, ignore_eos=True))
    assert lengths.remaining(request) == 100
    stops = Request("r", [1], SamplingParams(max_tokens=100, ignore_eos=True, stop=("x",)))
    assert lengths.remaining(stops) == 3


def test_until_enough_have_ended_an_output_is_expected_by_its_limit() -> None:
    lengths = taught(100, [3] * (FEWEST_ENDED - 1))
    assert lengths.remaining(ended(100, 0)) == 30
    assert lengths.remaining(ended(100, 50)) == 15
    lengths.record(ended(100, 3), was_cut=False)
    assert lengths.remaining(ended(100, 0)) == 3
    assert lengths.remaining(ended(2000, 0)) == 600  # another kind


def test_expectation_follows_those_that_got_as_far() -> None:
    lengths = taught(100, [*range(10, 20), *range(60, 70)])
    assert lengths.remaining(ended(100, 0)) == 15
    assert lengths.remaining(ended(100, 19)) == 62 - 19
    assert lengths.remaining(ended(100, 69)) == 31  # none got this far


def test_expectation_keeps_within_the_limits_of_the_request() -> None:
    lengths = taught(100, [90] * FEWEST_ENDED)
    assert lengths.remaining(ended(64, 0)) == 64
    assert lengths.remaining(ended(64, 64)) == 0
    least = Request("r", [1], SamplingParams(max_tokens=100, min_tokens=95))
    assert lengths.remaining(least) == 95


def test_output_cut_at_its_limit_counts_as_longer_for_those_that_may_be() -> None:
    lengths = taught(70, [70] * FEWEST_ENDED)
    assert lengths.remaining(ended(100, 0)) == 100


def test_only_the_newest_outputs_are_remembered() -> None:
    lengths = taught(100, [80] * WINDOW + [5] * (WINDOW - 1))
    assert lengths.remaining(ended(100, 10)) == 70
    lengths.record(ended(100, 5), was_cut=False)
    assert lengths.remaining(ended(100, 10)) == 90


class Careless(OutputLengths):
    """Nothing grows: admission looks at known tokens only."""

    def remaining(self, request: Request) -> int:
        return 1


def run_tight_pool(lengths: OutputLengths, known: bool) -> tuple[int, int]:
    """48 lines of 8 tokens in and 4 to 40 out, on a quarter of what 16 rows can take.

    Returns preemptions and tokens computed again.
    """
    config = EngineConfig(model=Path("none"), block_size=BLOCK, max_num_seqs=16)
    blocks = BlockManager(48, BLOCK, enable_prefix_caching=True)
    scheduler = Scheduler(config, blocks)
    scheduler.lengths = lengths
    ends = {str(index): 4 + index * 7 % 37 for index in range(48)}
    for index, (name, end) in enumerate(ends.items()):
        prompt = list(range(index * 100, index * 100 + 8))
        params = SamplingParams(max_tokens=end if known else 40, ignore_eos=known)
        scheduler.add(Request(name, prompt, params))
    recomputed = 0
    while scheduler.running or scheduler.num_waiting:
        plan = scheduler.schedule(0)
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            scheduler.record(request, num_tokens)
            if not request.num_uncomputed_tokens:
                request.append(7)
                if request.num_output_tokens == ends[request.request_id]:
                    recomputed += request.num_recomputed_tokens
                    scheduler.remove(request)
                    scheduler.lengths.record(request, was_cut=False)
        scheduler.check_integrity()
    return scheduler.num_preemptions, recomputed


def test_known_lengths_are_never_preempted() -> None:
    assert run_tight_pool(OutputLengths(), known=True) == (0, 0)


def test_learned_lengths_halve_preemptions_at_least() -> None:
    before, after = (run_tight_pool(kind, known=False) for kind in (Careless(), OutputLengths()))
    assert before[0] >= 20
    assert after[0] <= before[0] / 2
    assert after[1] <= before[1] / 2


@pytest.mark.parametrize("max_tokens", [4, 1000])
def test_idle_engine_starts_whatever_fits_now(max_tokens: int) -> None:
    blocks = BlockManager(4, BLOCK, enable_prefix_caching=True)
    config = EngineConfig(model=Path("none"), block_size=BLOCK, watermark=0.5)
    scheduler = Scheduler(config, blocks)
    request = Request("r", [1] * 16, SamplingParams(max_tokens=max_tokens, ignore_eos=True))
    scheduler.add(request)
    assert scheduler.schedule(0).requests == [request]


def test_a_shared_prefix_takes_its_room_once() -> None:
    blocks = BlockManager(7, BLOCK, enable_prefix_caching=True)
    config = EngineConfig(model=Path("none"), block_size=BLOCK, watermark=0.0)
    scheduler = Scheduler(config, blocks)
    for index in range(3):
        params = SamplingParams(max_tokens=3, ignore_eos=True)
        scheduler.add(Request(str(index), [*range(16), 100 + index], params))
    for _ in range(2):
        plan = scheduler.schedule(0)
        for request, num_tokens in zip(plan.requests, plan.num_tokens, strict=True):
            scheduler.record(request, num_tokens)
    assert len(scheduler.running) == 3
    assert blocks.num_used_blocks == 7
