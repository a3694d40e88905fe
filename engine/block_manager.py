"""The KV cache's blocks: lazy allocation, reference counts and the prefix cache.

Only bookkeeping lives here; the tensors belong to the attention backend. A block is always in
exactly one of three places: held by requests (count above 0), free without content, or free but
still cached for a later request with the same prefix, pinned if such a request is known.
"""

from array import array
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import takewhile

from engine.request import Request

HASH_BYTES = 16


class BlockManager:
    """Owner of `num_blocks` KV blocks of `block_size` tokens each."""

    def __init__(self, num_blocks: int, block_size: int, enable_prefix_caching: bool) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._ref_counts = [0] * num_blocks
        # Reused last-in first-out: the block that was written last is warm in the CPU's cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        # Free blocks with content, least recently used first; removal of any one is O(1).
        self._cached_free: OrderedDict[int, None] = OrderedDict()
        # Those of them that a waiting request needs: given up last. And how many need each hash.
        self._pinned_free: OrderedDict[int, None] = OrderedDict()
        self._pins: Counter[bytes] = Counter()
        self._block_of_hash: dict[bytes, int] = {}
        self._hash_of_block: dict[int, bytes] = {}
        self._tokens_of_block: dict[int, list[int]] = {}

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated now; cached ones are given up when needed."""
        return len(self._free) + len(self._cached_free) + len(self._pinned_free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens take."""
        return -(-num_tokens // self.block_size)

    def prefix_hashes(self, request: Request) -> list[bytes]:
        """Chained hashes of the full blocks a cache hit may cover.

        The last known token is never covered: it has to be computed to get logits. A request
        whose every hidden state is wanted has no such blocks.
        """
        needs_all = request.pooled is not None and request.pooled.needs_every_token
        if needs_all or not self.enable_prefix_caching:
            return []
        count = (request.num_tokens - 1) // self.block_size
        self._extend_hashes(request, count)
        return request.block_hashes[:count]

    def cached_prefix(self, request: Request) -> list[int]:
        """Blocks that already hold the head of this request's tokens."""
        blocks: list[int] = []
        for index, block_hash in enumerate(self.prefix_hashes(request)):
            block = self._block_of_hash.get(block_hash)
            # Tokens are compared too: a hash collision must never serve another prompt's cache.
            if block is None or self._tokens_of_block[block] != self._tokens_at(request, index):
                break
            blocks.append(block)
        return blocks

    def free_after_sharing(self, blocks: Iterable[int]) -> int:
        """Free blocks that would be left if a request took these cached blocks."""
        return self.num_free_blocks - sum(self._ref_counts[block] == 0 for block in blocks)

    def shared_head(self, request: Request, wanted: Collection[int]) -> list[int]:
        """The request's leading blocks that others hold too, or that are among the `wanted`."""
        return list(
            takewhile(lambda b: self._ref_counts[b] > 1 or b in wanted, request.block_table)
        )

    def share(self, request: Request, blocks: list[int]) -> None:
        """Start the request on the cached `blocks` of its prefix."""
        assert not request.block_table
        for block in blocks:
            if self._ref_counts[block] == 0:
                del self._free_room(block)[block]
            self._ref_counts[block] += 1
        request.block_table.extend(blocks)
        request.num_computed_tokens = len(blocks) * self.block_size

    def ensure(self, request: Request, num_tokens: int) -> bool:
        """Grow the block table to hold `num_tokens` tokens; False, and no change, if it can't."""
        missing = self.blocks_for(num_tokens) - len(request.block_table)
        if missing > self.num_free_blocks:
            return False
        for _ in range(missing):
            block = self._take_free()
            self._ref_counts[block] = 1
            request.block_table.append(block)
        return True

    def trim(self, request: Request) -> None:
        """Give back the blocks behind the request's known tokens: nobody else can hold them."""
        count = self.blocks_for(request.num_tokens)
        for block in reversed(request.block_table[count:]):
            self._ref_counts[block] -= 1
            self._free.append(block)
        del request.block_table[count:]

    def publish(self, request: Request, num_published: int) -> int:
        """Enter the request's full computed blocks into the prefix cache.

        `num_published` blocks were entered before; returns the new number.
        """
        if not self.enable_prefix_caching:
            return num_published
        count = request.num_computed_tokens // self.block_size
        self._extend_hashes(request, count)
        for index in range(num_published, count):
            block = request.block_table[index]
            block_hash = request.block_hashes[index]
            # Another request may have computed the same prefix first: its block stays the one.
            if block_hash not in self._block_of_hash and block not in self._hash_of_block:
                self._block_of_hash[block_hash] = block
                self._hash_of_block[block] = block_hash
                self._tokens_of_block[block] = self._tokens_at(request, index)
        return max(count, num_published)

    def release(self, request: Request) -> None:
        """Give all of the request's blocks back; cached content stays findable.

        Tail first, so that the end of a prefix is given up before its beginning.
        """
        for block in reversed(request.block_table):
            self._ref_counts[block] -= 1
            if self._ref_counts[block] == 0:
                if block in self._hash_of_block:
                    self._free_room(block)[block] = None
                else:
                    self._free.append(block)
        request.block_table.clear()
        request.num_computed_tokens = 0

    def pin(self, hashes: Sequence[bytes]) -> None:
        """A waiting request needs the blocks with these hashes, computed or still to come."""
        for block_hash in reversed(hashes):  # tail first, as in `release`
            self._move(block_hash, 1)

    def unpin(self, hashes: Sequence[bytes]) -> None:
        """Undo one `pin`."""
        for block_hash in reversed(hashes):
            self._move(block_hash, -1)

    def check_integrity(self, requests: Iterable[Request]) -> None:
        """Assert that no block is lost, doubled or miscounted, given all holders."""
        counts = [0] * self.num_blocks
        for request in requests:
            assert len(set(request.block_table)) == len(request.block_table), "block held twice"
            for block in request.block_table:
                counts[block] += 1
        assert counts == self._ref_counts, "reference counts differ from the block tables"
        free = set(self._free)
        assert len(free) == len(self._free), "block freed twice"
        cached = self._cached_free.keys() | self._pinned_free.keys()
        assert free.isdisjoint(cached), "block both free and cached"
        assert len(cached) == len(self._cached_free) + len(self._pinned_free)
        assert all(block in self._free_room(block) for block in cached), "wrongly pinned"
        for block in range(self.num_blocks):
            is_free = block in free or block in cached
            assert is_free == (counts[block] == 0), f"block {block} is lost or in use while free"
        assert free.isdisjoint(self._hash_of_block), "free block still hashed"
        assert all(block in self._hash_of_block for block in cached)
        assert self._block_of_hash == {h: b for b, h in self._hash_of_block.items()}
        assert self._hash_of_block.keys() == self._tokens_of_block.keys()

    def _take_free(self) -> int:
        if self._free:
            return self._free.pop()
        block, _ = (self._cached_free or self._pinned_free).popitem(last=False)
        del self._block_of_hash[self._hash_of_block.pop(block)]
        del self._tokens_of_block[block]
        return block

    def _free_room(self, block: int) -> OrderedDict[int, None]:
        """Where a block with content is kept while nobody holds it."""
        return self._pinned_free if self._pins[self._hash_of_block[block]] else self._cached_free

    def _move(self, block_hash: bytes, pins: int) -> None:
        """Change how many need a hash, and with that its block's room."""
        block = self._block_of_hash.get(block_hash)
        is_free = block is not None and self._ref_counts[block] == 0
        if block is not None and is_free:
            del self._free_room(block)[block]
        self._pins[block_hash] += pins
        if not self._pins[block_hash]:
            del self._pins[block_hash]
        if block is not None and is_free:
            self._free_room(block)[block] = None

    def _tokens_at(self, request: Request, index: int) -> list[int]:
        start = index * self.block_size
        return request.token_ids[start : start + self.block_size]

    def _extend_hashes(self, request: Request, count: int) -> None:
        hashes = request.block_hashes
        for index in range(len(hashes), count):
            digest = blake2b(hashes[-1] if hashes else b"", digest_size=HASH_BYTES)
            digest.update(array("q", self._tokens_at(request, index)).tobytes())
            hashes.append(digest.digest())
