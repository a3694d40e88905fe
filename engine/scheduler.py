"""Which request computes how many tokens in the next step.

There are no phases: every running request asks for all tokens it knows but has not computed.
A chunk of a long prompt, a decode, the rest after a prefix hit and the recomputation after a
preemption are one case. Nothing here touches a device.
"""

import heapq
from collections.abc import Iterable

from engine.admission import Forecast, OutputLengths
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.prefix_groups import PrefixGroups
from engine.request import Request, RequestStatus
from engine.speculation import Speculation
from engine.step_plan import StepPlan

MAX_HELD_PER_STEP = 64
"""Waiting requests looked past in one step because a sibling computes their prefix."""


class Scheduler:
    """Holds the waiting and the running requests and plans one step at a time."""

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        whole_prompts: bool = False,
        speculation: Speculation | None = None,
    ) -> None:
        """`whole_prompts` gives a prompt all of its tokens in one step, whatever they are.

        Without a `speculation` no row guesses.
        """
        self._config = config
        self._whole_prompts = whole_prompts
        self._speculation = speculation or Speculation(0)
        self._blocks = blocks
        self._watermark_blocks = int(config.watermark * blocks.num_blocks)
        self.lengths = OutputLengths()
        # More urgent first (higher priority), then longest if asked for, then first come; the
        # number breaks ties for good.
        self._waiting: list[tuple[int, int, int, Request]] = []
        self._longest_first = False
        self._order_of: dict[str, int] = {}
        self._num_added = 0
        self._num_steps = 0
        self.running: list[Request] = []
        self.num_preemptions = 0
        self.prefix_hit_tokens = 0
        self.prefix_query_tokens = 0
        self._num_published: dict[str, int] = {}
        self._groups = PrefixGroups(blocks)

    @property
    def waiting(self) -> list[Request]:
        """Waiting requests, in no particular order."""
        return [entry[-1] for entry in self._waiting]

    @property
    def longest_first(self) -> bool:
        """Whether equals start longest expected output first, not first come first served.

        With all that is left in the queue this keeps the last rows from running on alone: longest
        processing time first (Graham, "Bounds on multiprocessing timing anomalies", 1969). Before
        that it would only let short ones wait, and tear prefix neighbours apart.
        """
        return self._longest_first

    @longest_first.setter
    def longest_first(self, on: bool) -> None:
        if on != self._longest_first:
            self._longest_first = on
            self._sort_waiting()

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: Request) -> None:
        """Queue a new request behind its equals."""
        self._order_of[request.request_id] = self._num_added
        self._num_added += 1
        self._enqueue(request)

    def replace(self, request: Request, heir: Request) -> None:
        """Take a request out and put another, which it never knew, in its place in the queue."""
        order = self._order_of[request.request_id]
        self.remove(request)
        self._order_of[heir.request_id] = order
        self._enqueue(heir)

    def set_priority(self, request: Request, priority: int) -> None:
        """Change how urgent a request is, waiting or running."""
        if priority != request.priority:
            request.priority = priority
            self._sort_waiting()

    def schedule(self, now_us: int) -> StepPlan:
        """Plan the next step and reserve its blocks."""
        self._num_steps += 1
        plan = StepPlan(budget=self._config.max_num_batched_tokens)
        self._force_preemption(plan)
        self._schedule_running(plan)
        # A step that had to preempt has no room for newcomers: admitting now would thrash.
        if not plan.num_preempted:
            self._admit(plan, now_us)
            if not plan.requests and self._waiting:
                plan.stuck = self._waiting[0][-1]
        self._house_guesses(plan)
        return plan

    def record(self, request: Request, num_tokens: int) -> None:
        """Count tokens that a step computed and open their full blocks to other requests."""
        request.advance(num_tokens)
        before = self._num_published[request.request_id]
        after = self._blocks.publish(request, before)
        self._groups.stop_leading(request, request.block_hashes[before:after])
        self._num_published[request.request_id] = after

    def end_guesses(self, request: Request) -> None:
        """Forget what a request guessed in the step, and free the blocks that it took for it."""
        request.guesses = []
        self._blocks.trim(request)

    def remove(self, request: Request) -> None:
        """Take a request out for good, wherever it is, and free its blocks."""
        if request.status is RequestStatus.RUNNING:
            self._leave_running(request)
        elif request.status is RequestStatus.WAITING:
            self._waiting = [entry for entry in self._waiting if entry[-1] is not request]
            heapq.heapify(self._waiting)
            self._groups.stop_waiting(request)
        request.status = RequestStatus.FINISHED
        self._order_of.pop(request.request_id, None)

    def check_integrity(self) -> None:
        """Assert that queues, tables and blocks agree."""
        assert all(r.status is RequestStatus.RUNNING for r in self.running)
        assert all(r.status is RequestStatus.WAITING for r in self.waiting)
        assert all(not r.block_table for r in self.waiting), "waiting request holds blocks"
        assert all(r.num_computed_tokens <= r.num_tokens for r in self.running)
        assert len(self._order_of) == len(self.running) + len(self._waiting)
        self._groups.check_integrity(self.running, self.waiting)
        self._blocks.check_integrity(self.running)

    def _enqueue(self, request: Request) -> None:
        request.status = RequestStatus.WAITING
        heapq.heappush(self._waiting, self._entry(request))
        self._groups.wait(request)

    def _sort_waiting(self) -> None:
        self._waiting = [self._entry(request) for request in self.waiting]
        heapq.heapify(self._waiting)

    def _entry(self, request: Request) -> tuple[int, int, int, Request]:
        length = self.lengths.remaining(request) if self._longest_first else 0
        return (-request.priority, -length, self._order_of[request.request_id], request)

    def _chunk(self, request: Request, budget: int) -> int:
        if self._whole_prompts:
            return request.num_uncomputed_tokens
        return min(request.num_uncomputed_tokens, budget, self._config.long_prefill_tokens)

    def _schedule_running(self, plan: StepPlan) -> None:
        """Plan the running requests, decodes first, and what those guess."""
        # Decodes cost one token each and end soonest, so no prefill may starve them.
        order = sorted(self.running, key=lambda r: -r.priority)
        decodes = [r for r in order if r.num_uncomputed_tokens == 1]
        chunks = [r for r in order if r.num_uncomputed_tokens > 1]
        self._plan_each(decodes, plan)
        self._speculation.guess(plan, others_wait=bool(chunks or self._waiting))
        self._plan_each(chunks, plan)

    def _plan_each(self, requests: Iterable[Request], plan: StepPlan) -> None:
        for request in requests:
            if plan.budget <= 0:
                break
            if request.status is RequestStatus.RUNNING:  # else preempted for one before it
                num_tokens = self._chunk(request, plan.budget)
                if self._reserve(request, num_tokens, plan):
                    plan.add(request, num_tokens)

    def _house_guesses(self, plan: StepPlan) -> None:
        """Keep the guesses for which there is room that nobody else asked for in this step.

        Blocks are taken for them last and given back after the step, so that nobody is preempted
        or kept waiting for a guess.
        """
        # With hidden states a step has no likeliest tokens, so it can't verify anything.
        can_verify = all(request.pooled is None for request in plan.requests)
        for index, request in enumerate(plan.requests):
            if request.guesses:
                slots = self._spare_slots(request) if can_verify else 0
                plan.guess(index, request.guesses[:slots])
                self._blocks.ensure(request, request.num_tokens + len(request.guesses))

    def _spare_slots(self, request: Request) -> int:
        """Slots behind a request's known tokens that it has, or could get above the watermark."""
        spare = max(0, self._blocks.num_free_blocks - self._watermark_blocks)
        num_blocks = len(request.block_table) + spare
        return num_blocks * self._blocks.block_size - request.num_tokens

    def _reserve(self, request: Request, num_tokens: int, plan: StepPlan) -> bool:
        """Get blocks for the request's next tokens, preempting as needed; False if it lost."""
        while not self._blocks.ensure(request, request.num_computed_tokens + num_tokens):
            victim = min(self.running, key=self._worth)
            self._preempt(victim, plan)
            if victim is request:
                return False
        return True

    def _worth(self, request: Request) -> tuple[int, int, int]:
        """Preemption takes the least: worst priority, least recomputation, newest."""
        order = self._order_of[request.request_id]
        return (request.priority, request.num_computed_tokens, -order)

    def _preempt(self, request: Request, plan: StepPlan) -> None:
        plan.discard(request)
        self._leave_running(request)
        request.num_preemptions += 1
        self.num_preemptions += 1
        plan.num_preempted += 1
        self._enqueue(request)

    def _force_preemption(self, plan: StepPlan) -> None:
        """The test switch: preempt the cheapest victim every so many steps."""
        every = self._config.preempt_every
        if not every or self._num_steps % every:
            return
        # At most one per output token, else a recomputation longer than the period never ends.
        ready = [r for r in self.running if r.num_preemptions <= r.num_output_tokens]
        if ready:
            self._preempt(min(ready, key=self._worth), plan)

    def _leave_running(self, request: Request) -> None:
        self.running.remove(request)
        num_published = self._num_published.pop(request.request_id)
        self._groups.stop_leading(request, request.block_hashes[num_published:])
        self._blocks.release(request)

    def _admit(self, plan: StepPlan, now_us: int) -> None:
        """Start waiting requests while tokens, rows and blocks last; urgent ones make their own."""
        held: list[tuple[int, int, int, Request]] = []
        forecast: Forecast | None = None
        while self._waiting:
            request = self._waiting[0][-1]
            if plan.budget <= 0 or len(self.running) >= self._config.max_num_seqs:
                if not self._displace(request, plan):
                    break
                forecast = None
                continue
            if forecast is None:
                forecast = Forecast(self.running, self._blocks, self.lengths)
            prefix = self._blocks.cached_prefix(request)
            if self._groups.has_leader(request, len(prefix)):
                held.append(heapq.heappop(self._waiting))
                if len(held) == MAX_HELD_PER_STEP:
                    break
                continue
            fits = forecast.allows(request, prefix, reserve=self._watermark_blocks)
            if not fits and self._displace(request, plan):
                forecast = None
                continue
            if not fits or self._overruns(request, plan):
                break
            heapq.heappop(self._waiting)
            self._start(request, prefix, now_us)
            num_tokens = self._chunk(request, plan.budget)
            self._blocks.ensure(request, request.num_computed_tokens + num_tokens)
            forecast.add(request)
            plan.add(request, num_tokens)
        for entry in held:
            heapq.heappush(self._waiting, entry)

    def _displace(self, request: Request, plan: StepPlan) -> bool:
        """Send the least of those running back to the queue for a more urgent request, if any is.

        It is computed again later, as far as its blocks are not found in the cache then.
        """
        if not self.running:
            return False
        victim = min(self.running, key=self._worth)
        if victim.priority >= request.priority:
            return False
        self._preempt(victim, plan)
        return True

    def _overruns(self, request: Request, plan: StepPlan) -> bool:
        """Whether a prompt that can't be cut would lengthen a step that has begun another one."""
        is_first = all(n == 1 for n in plan.num_tokens)
        return self._whole_prompts and not is_first and request.num_uncomputed_tokens > plan.budget

    def _start(self, request: Request, prefix: list[int], now_us: int) -> None:
        self._blocks.share(request, prefix)
        request.status = RequestStatus.RUNNING
        self.running.append(request)
        self._num_published[request.request_id] = len(prefix)
        self._groups.stop_waiting(request)
        self._groups.lead(request, len(prefix))
        if request.first_scheduled_us is None:
            request.first_scheduled_us = now_us
            request.num_cached_tokens = request.num_computed_tokens
            self.prefix_hit_tokens += request.num_computed_tokens
            self.prefix_query_tokens += request.num_tokens
        request.max_computed_tokens = max(request.max_computed_tokens, request.num_computed_tokens)
