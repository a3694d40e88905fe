"""The block manager: conservation, sharing, eviction order, and hits that compare tokens."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_manager import BlockManager
from engine.request import Request
from engine.sampling_params import SamplingParams

BLOCK = 4


def make_request(token_ids: list[int], name: str = "r") -> Request:
    return Request(name, token_ids, SamplingParams(max_tokens=1))


def compute_all(blocks: BlockManager, request: Request) -> None:
    assert blocks.ensure(request, request.num_tokens)
    request.num_computed_tokens = request.num_tokens
    blocks.publish(request, 0)


def test_blocks_are_allocated_only_for_the_tokens_asked_for() -> None:
    blocks = BlockManager(8, BLOCK, True)
    request = make_request(list(range(12)))
    assert blocks.ensure(request, 5)
    assert len(request.block_table) == 2
    assert blocks.num_used_blocks == 2


def test_failed_growth_changes_nothing() -> None:
    blocks = BlockManager(2, BLOCK, True)
    request = make_request(list(range(12)))
    assert not blocks.ensure(request, 12)
    assert not request.block_table
    assert blocks.num_free_blocks == 2


def test_released_prefix_is_found_again() -> None:
    blocks = BlockManager(8, BLOCK, True)
    first = make_request(list(range(10)))
    compute_all(blocks, first)
    held = first.block_table[:2]
    blocks.release(first)
    assert blocks.num_used_blocks == 0
    assert blocks.cached_prefix(make_request(list(range(10)))) == held


def test_full_hit_leaves_one_token_to_compute() -> None:
    blocks = BlockManager(8, BLOCK, True)
    first = make_request(list(range(8)))
    compute_all(blocks, first)
    assert len(blocks.cached_prefix(make_request(list(range(8))))) == 1
    assert len(blocks.cached_prefix(make_request(list(range(9))))) == 2


def test_equal_block_behind_another_prefix_is_no_hit() -> None:
    blocks = BlockManager(8, BLOCK, True)
    compute_all(blocks, make_request([1, 1, 1, 1, 2, 2, 2, 2, 3]))
    assert blocks.cached_prefix(make_request([9, 9, 9, 9, 2, 2, 2, 2, 3])) == []


def test_hash_collision_is_no_hit() -> None:
    blocks = BlockManager(8, BLOCK, True)
    compute_all(blocks, make_request(list(range(9))))
    other = make_request(list(range(50, 59)))
    twin = make_request(list(range(9)))
    other.block_hashes = blocks.prefix_hashes(twin)
    assert blocks.cached_prefix(twin)
    assert blocks.cached_prefix(other) == []


def test_nothing_is_cached_when_prefix_caching_is_off() -> None:
    blocks = BlockManager(8, BLOCK, False)
    compute_all(blocks, make_request(list(range(9))))
    assert blocks.cached_prefix(make_request(list(range(9)))) == []


def test_tail_of_a_prefix_is_evicted_before_its_head() -> None:
    blocks = BlockManager(3, BLOCK, True)
    first = make_request(list(range(12)))
    compute_all(blocks, first)
    blocks.release(first)
    assert blocks.ensure(make_request([99] * BLOCK, "other"), BLOCK)
    assert len(blocks.cached_prefix(make_request(list(range(13))))) == 2


def test_least_recently_used_prefix_is_evicted_first() -> None:
    blocks = BlockManager(2, BLOCK, True)
    old, new = make_request([1] * BLOCK, "old"), make_request([2] * BLOCK, "new")
    compute_all(blocks, old)
    compute_all(blocks, new)
    blocks.release(old)
    blocks.release(new)
    reused = make_request([1] * BLOCK + [5], "reused")
    blocks.share(reused, blocks.cached_prefix(reused))
    blocks.release(reused)
    assert blocks.ensure(make_request([3] * BLOCK, "third"), BLOCK)
    assert blocks.cached_prefix(make_request([1] * BLOCK + [5]))
    assert not blocks.cached_prefix(make_request([2] * BLOCK + [5]))


def test_shared_block_is_free_only_after_its_last_holder() -> None:
    blocks = BlockManager(8, BLOCK, True)
    first, second = make_request(list(range(9)), "a"), make_request(list(range(9)), "b")
    compute_all(blocks, first)
    blocks.share(second, blocks.cached_prefix(second))
    assert second.num_computed_tokens == 2 * BLOCK
    blocks.release(first)
    assert blocks.num_used_blocks == 2
    blocks.check_integrity([second])
    blocks.release(second)
    assert blocks.num_used_blocks == 0


def test_integrity_check_notices_a_lost_block() -> None:
    blocks = BlockManager(4, BLOCK, True)
    request = make_request(list(range(4)))
    compute_all(blocks, request)
    with pytest.raises(AssertionError):
        blocks.check_integrity([])


class BlockTraffic(RuleBasedStateMachine):
    """Random requests over a tiny alphabet, so that prefixes collide all the time."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = BlockManager(10, 2, True)
        self.holders: list[Request] = []
        self.published: dict[str, int] = {}
        self.count = 0

    @rule(token_ids=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def start(self, token_ids: list[int]) -> None:
        self.count += 1
        request = make_request(token_ids, str(self.count))
        prefix = self.blocks.cached_prefix(request)
        missing = self.blocks.blocks_for(len(token_ids)) - len(prefix)
        if missing > self.blocks.free_after_sharing(prefix):
            return
        self.blocks.share(request, prefix)
        assert request.num_computed_tokens < request.num_tokens
        self.holders.append(request)
        self.published[request.request_id] = len(prefix)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), num_tokens=st.integers(1, 3))
    def compute(self, data: st.DataObject, num_tokens: int) -> None:
        request = data.draw(st.sampled_from(self.holders))
        end = min(request.num_tokens, request.num_computed_tokens + num_tokens)
        free = self.blocks.num_free_blocks
        missing = self.blocks.blocks_for(end) - len(request.block_table)
        assert self.blocks.ensure(request, end) == (missing <= free)
        if missing <= free:
            request.num_computed_tokens = end
            before = self.published[request.request_id]
            self.published[request.request_id] = self.blocks.publish(request, before)

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), token_id=st.integers(0, 1))
    def decode(self, data: st.DataObject, token_id: int) -> None:
        data.draw(st.sampled_from(self.holders)).token_ids.append(token_id)

    @precondition(lambda self: self.holders)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.holders))
        self.blocks.release(request)
        self.holders.remove(request)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.blocks.check_integrity(self.holders)

    @invariant()
    def writable_blocks_have_one_owner(self) -> None:
        for request in self.holders:
            first_open = request.num_computed_tokens // 2
            for block in request.block_table[first_open:]:
                assert sum(block in other.block_table for other in self.holders) == 1

    @invariant()
    def shared_blocks_hold_the_same_prefix(self) -> None:
        prefix_of: dict[int, tuple[int, ...]] = {}
        for request in self.holders:
            for index, block in enumerate(request.block_table):
                if (index + 1) * 2 <= request.num_computed_tokens:
                    prefix = tuple(request.token_ids[: (index + 1) * 2])
                    assert prefix_of.setdefault(block, prefix) == prefix


TestBlockTraffic = BlockTraffic.TestCase
TestBlockTraffic.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
