"""What becomes of a step: its tokens go to their requests, and some requests end by them."""

import time

from engine.counters import Counters
from engine.endings import Endings
from engine.errors import EngineError
from engine.model_runner import StepResult
from engine.outputs import FinishReason
from engine.request import Request
from engine.request_faults import grammar_fault, invalid_logits
from engine.scheduler import Scheduler
from engine.speculation import Speculation
from engine.step_plan import StepPlan
from engine.token_logprobs import TokenLogprobs

End = tuple[Request, FinishReason, EngineError | None]
"""Who ended, and why."""


class Intake:
    """Gives the requests of a step what was computed for them."""

    def __init__(
        self,
        scheduler: Scheduler,
        speculation: Speculation,
        counters: Counters,
        endings: Endings,
    ) -> None:
        self._scheduler = scheduler
        self._speculation = speculation
        self._counters = counters
        self._endings = endings

    def take(self, plan: StepPlan, result: StepResult) -> list[End]:
        """Append the step's tokens to their requests; returns who ended and why."""
        now_us = time.perf_counter_ns() // 1_000
        ended: list[End] = []
        for index, (request, num_tokens) in enumerate(
            zip(plan.requests, plan.num_tokens, strict=True)
        ):
            end: End | None = None
            if result.finite[index]:
                num_known = num_tokens - len(request.guesses)
                self._take_computed(request, num_known, result, index)
                end = self._take_tokens(request, result, index, now_us)
            elif not request.guesses:
                end = request, FinishReason.ERROR, invalid_logits(request)
            if request.guesses:
                self._settle_guesses(request, result, index)
            if end is not None:
                ended.append(end)
        return ended

    def _take_computed(
        self, request: Request, num_known: int, result: StepResult, index: int
    ) -> None:
        """Count a request's known tokens of the step as computed."""
        vector = result.states[index]
        if request.pooled is not None and vector is not None:
            request.pooled.add(request.num_computed_tokens, num_known, vector)
        self._scheduler.record(request, num_known)

    def _take_tokens(
        self, request: Request, result: StepResult, index: int, now_us: int
    ) -> End | None:
        """Append what follows a request's known tokens, up to its end; returns that, if it came."""
        if request.num_uncomputed_tokens:
            return None  # inside its prompt: the token is already known
        if request.pooled is not None:
            return request, FinishReason.STOP, None
        if request.first_token_us is None:
            request.first_token_us = now_us
        for place, token_id in enumerate(result.token_ids[index]):
            if place:  # the one before it was guessed, so it has been computed too
                self._scheduler.record(request, 1)
            end = self._take_token(request, token_id, result.logprobs[index])
            if end is not None:
                return end
        return None

    def _take_token(
        self, request: Request, token_id: int, logprobs: TokenLogprobs | None
    ) -> End | None:
        """Append one output token; returns the request's end, if this is it."""
        request.append(token_id, logprobs)
        self._counters.output_tokens += 1
        if request.grammar is not None and request.grammar.fault is not None:
            return request, FinishReason.ERROR, grammar_fault(request)
        reason = self._endings.reason(request)
        return None if reason is None else (request, reason, None)

    def _settle_guesses(self, request: Request, result: StepResult, index: int) -> None:
        """Learn from a request's guesses and let them go."""
        num_guessed, num_held = len(request.guesses), len(result.token_ids[index]) - 1
        if not result.finite[index]:
            # One guess may have spoilt all of the row: it is computed again, this time without.
            num_held = 0
            self._speculation.distrust(request)
        self._speculation.learn(request, num_guessed, num_held)
        self._counters.take_guesses(num_guessed, num_held)
        self._scheduler.end_guesses(request)
