"""Requests inside the engine that begin alike: who computes their prefix, and who waits for it."""

from collections.abc import Iterable

from engine.block_manager import BlockManager
from engine.request import Request


class PrefixGroups:
    """The groups of one engine, told by the chained hashes of their blocks of token ids.

    A group is whoever shares a block's hash. Its first running member leads: followers wait until
    the leader's block is in the cache, for computing the same beside it would cost as much as all
    of it. A block that a follower waits for is pinned: among the free blocks with content it is
    the last to be given up, and it is given up before a running request would have to yield.
    Requests that share nothing with others are not touched.
    """

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks
        # Hashes that a running request is about to compute, with that request.
        self._leader_of: dict[bytes, Request] = {}
        self._awaited_by: dict[str, list[bytes]] = {}

    def wait(self, request: Request) -> None:
        """A request was queued: from now on it waits for the blocks of its prefix."""
        hashes = list(self._blocks.prefix_hashes(request))
        self._awaited_by[request.request_id] = hashes
        self._blocks.pin(hashes)

    def stop_waiting(self, request: Request) -> None:
        """A request left the queue, having taken what it found or for good."""
        self._blocks.unpin(self._awaited_by.pop(request.request_id))

    def lead(self, request: Request, num_cached_blocks: int) -> None:
        """A request starts behind so many cached blocks of its prefix, and computes the others."""
        for block_hash in self._blocks.prefix_hashes(request)[num_cached_blocks:]:
            self._leader_of.setdefault(block_hash, request)

    def stop_leading(self, request: Request, hashes: Iterable[bytes]) -> None:
        """A leader has computed blocks, or won't."""
        for block_hash in hashes:
            if self._leader_of.get(block_hash) is request:
                del self._leader_of[block_hash]

    def has_leader(self, request: Request, num_cached_blocks: int) -> bool:
        """Whether a running request is about to compute the next block of this prefix."""
        hashes = self._blocks.prefix_hashes(request)
        return len(hashes) > num_cached_blocks and hashes[num_cached_blocks] in self._leader_of

    def check_integrity(self, running: list[Request], waiting: list[Request]) -> None:
        """Assert that leaders run, and that exactly those wait who are in the queue."""
        assert all(leader in running for leader in self._leader_of.values())
        assert self._awaited_by.keys() == {request.request_id for request in waiting}
