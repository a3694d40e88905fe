"""Whether a waiting request may start: what all running ones will hold, as far as can be told.

The forecast is lightllm's (its "past-future scheduler", Gong et al., ASPLOS 2025): with everybody a
token longer each step until the shortest has ended, memory peaks just before some request ends, so
only those moments have to be looked at.
"""

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engine.block_manager import BlockManager
from engine.request import Request

WINDOW = 256
"""Ended requests of a kind that are remembered."""
FEWEST_ENDED = 16
"""With fewer of its kind ended, a request's length is taken to be anything up to its limit."""
QUANTILE = 0.3
"""Share of its kind that a request is expected to outlast.

Low, for lengths differ: while some outlast this, others end earlier and give their blocks back.
`bench/scheduling.py` shows what more and less of it cost.
"""


class OutputLengths:
    """How long outputs turn out to be, learned from those that ended.

    Requests are of a kind when their `max_tokens` have the same number of binary digits.
    """

    def __init__(self) -> None:
        self._recent: dict[int, deque[int]] = {}
        self._sorted: dict[int, list[int]] = {}

    def record(self, request: Request, was_cut: bool) -> None:
        """Learn from a request that ended by itself, or `was_cut` at its limit."""
        kind = request.params.max_tokens.bit_length()
        recent = self._recent.setdefault(kind, deque())
        lengths = self._sorted.setdefault(kind, [])
        if len(recent) == WINDOW:
            del lengths[bisect_right(lengths, recent.popleft()) - 1]
        # What was cut would have gone on: of those with a higher limit it says "longer".
        length = 1 << kind if was_cut else request.num_output_tokens
        recent.append(length)
        insort(lengths, length)

    def remaining(self, request: Request) -> int:
        """Output tokens that the request is expected to add; never more than it may."""
        params = request.params
        made = request.num_output_tokens
        left = max(0, params.max_tokens - made)
        if params.ignore_eos and not params.stop and not params.stop_token_ids:
            return left
        least = min(left, max(1, params.min_tokens - made))
        lengths = self._sorted.get(params.max_tokens.bit_length(), [])
        if len(lengths) < FEWEST_ENDED:
            return max(least, ceil(left * QUANTILE))
        first = bisect_right(lengths, made)
        if first == len(lengths):  # none of its kind got this far
            return left
        expected = lengths[first + int((len(lengths) - first - 1) * QUANTILE)] - made
        return max(least, min(expected, left))


@dataclass(frozen=True, slots=True)
class Holder:
    """A request's hold on the pool.

    Attributes:
        growth: tokens it will still store beside those it knows.
        num_tokens: tokens it knows, which all have a slot or get one.
        shared: leading blocks that others hold too.
    """

    growth: int
    num_tokens: int
    shared: Sequence[int] = ()


def peak_blocks(holders: Sequence[Holder], block_size: int) -> int:
    """Most blocks in use at once until all have ended, each a token longer every step.

    Exact under that assumption: a shared block is counted once and until its last holder ends.
    """
    peak = held = 0
    seen: set[int] = set()
    # by_slack[s]: holders with s free slots in their last block.
    by_slack = [0] * block_size
    for count, holder in enumerate(sorted(holders, key=lambda h: -h.growth), start=1):
        held += -(-holder.num_tokens // block_size) - sum(block in seen for block in holder.shared)
        seen.update(holder.shared)
        by_slack[-holder.num_tokens % block_size] += 1
        whole, rest = divmod(holder.growth, block_size)
        # After `rest` more tokens those with less slack than that have begun a block.
        peak = max(peak, held + count * whole + sum(by_slack[:rest]))
    return peak


class Forecast:
    """What the running requests will hold, for the admissions of one step."""

    def __init__(
        self, running: Sequence[Request], blocks: BlockManager, lengths: OutputLengths
    ) -> None:
        self._blocks = blocks
        self._lengths = lengths
        self._running: list[tuple[Request, int]] = []
        self._most = 0
        for request in running:
            self.add(request)

    def add(self, request: Request) -> None:
        """Count one more as running, with the blocks it has."""
        growth = self._growth(request)
        self._running.append((request, growth))
        self._most += self._blocks.blocks_for(request.num_tokens + growth)

    def allows(self, request: Request, prefix: Sequence[int], reserve: int) -> bool:
        """Whether the request, on the cached blocks of its prefix, fits for as long as it runs.

        Alone it needs room only for what it knows: it may grow into everything, and an idle engine
        has nothing to wait for. Beside others the peak to come must leave `reserve` blocks free;
        that peak counts what they know and have not allocated yet.
        """
        if not self._running:
            needed = self._blocks.blocks_for(request.num_tokens) - len(prefix)
            return needed <= self._blocks.free_after_sharing(prefix)
        return self._peak_fits(request, prefix, self._blocks.num_blocks - reserve)

    def _peak_fits(self, request: Request, prefix: Sequence[int], capacity: int) -> bool:
        growth = self._growth(request)
        if self._most + self._blocks.blocks_for(request.num_tokens + growth) <= capacity:
            return True  # even if all were at their longest at once
        wanted = set(prefix)
        holders = [
            Holder(grows, other.num_tokens, self._blocks.shared_head(other, wanted))
            for other, grows in self._running
        ]
        holders.append(Holder(growth, request.num_tokens, prefix))
        return peak_blocks(holders, self._blocks.block_size) <= capacity

    def _growth(self, request: Request) -> int:
        # The last token of an output is never computed, so it takes no slot.
        return max(0, self._lengths.remaining(request) - 1)
