"""LLMEngine: prompts in, finished requests out, one scheduler step at a time. The only door."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.counters import Counters
from engine.detokenizer import Detokenizer
from engine.device_memory import gpu_uuid
from engine.duplicates import Duplicates
from engine.endings import Endings
from engine.errors import EngineError, InvalidParams
from engine.intake import End, Intake
from engine.lanes import open_lane
from engine.limits import Limits
from engine.logit_edits import LogitEdits
from engine.models import load_model
from engine.models.calibration import TEXT as CALIBRATION_TEXT
from engine.models.folder import read_pooling
from engine.outputs import EngineStats, FinishReason, RequestMetrics, RequestOutput
from engine.pooling import PooledStates, PoolingParams
from engine.profile import StepProfile
from engine.request import Request
from engine.request_faults import never_fits
from engine.sampling_params import SamplingParams
from engine.scheduler import Scheduler
from engine.speculation import Speculation
from engine.step_plan import StepPlan
from engine.tokenizer import Tokenizer
from engine.tracing import stretch


class LLMEngine:
    """A loaded model in its lane, with its scheduler and its running requests.

    Attributes:
        lane: "paged", or "padded" where the paged engine can't run the model.
        lane_reason: why the lane isn't the paged one; empty if it is.
        description: the model, where and how it runs, for people.

    Not thread-safe: one thread owns it. A fault of one request ends that request; anything else
    that `step` raises means the engine is unusable.
    """

    def __init__(self, config: EngineConfig) -> None:
        """Load and probe the model, then size and allocate the KV pool.

        Raises:
            UnsupportedModel: the model is refused.
            InvalidParams: the configuration doesn't fit the model or the device.
        """
        if config.num_threads is not None:
            torch.set_num_threads(config.num_threads)
        self.tokenizer = Tokenizer(config.model)
        model = load_model(config, self.tokenizer.encode(CALIBRATION_TEXT, False))
        self._num_token_ids = min(model.vocab_size, self.tokenizer.num_token_ids)
        lane = open_lane(model, config, self._num_token_ids)
        config, num_blocks = lane.config, lane.num_blocks
        # A sequence that outgrows the whole pool could never finish, so the pool is a limit too.
        self.max_model_len = min(model.max_model_len, num_blocks * config.block_size)
        self.vocab_size = model.vocab_size
        self._limits = Limits(
            self.max_model_len,
            self.vocab_size,
            self._num_token_ids,
            self.tokenizer.num_token_ids,
        )
        self.hidden_size = model.hidden_size
        self.default_pooling = read_pooling(config.model)
        self.max_num_seqs = config.max_num_seqs
        self.lane = lane.name
        self.lane_reason = lane.reason
        self.gpu_uuid = gpu_uuid(model.device)
        self.description = (
            f"{model.name} on {model.device}, {model.dtype}, {lane.details}, "
            f"KV: {num_blocks} blocks of {config.block_size} tokens, steps of up to "
            f"{config.max_num_seqs} rows and {config.max_num_batched_tokens} tokens"
        )
        self._runner = lane.runner
        self._seconds_at_load = lane.runner.seconds()  # of steps that were only timed
        self._profile = StepProfile()
        self._blocks = BlockManager(num_blocks, config.block_size, config.enable_prefix_caching)
        self._speculation = Speculation(config.num_speculative_tokens)
        self._scheduler = Scheduler(config, self._blocks, lane.whole_prompts, self._speculation)
        self._requests: dict[str, Request] = {}
        self._duplicates = Duplicates(config.merge_duplicates)
        self._detokenizers: dict[str, Detokenizer] = {}
        self._counters = Counters()
        self._endings = Endings(
            self.tokenizer.eos_token_ids,
            self._num_token_ids,
            self.max_model_len,
            self._detokenizers,
        )
        self._intake = Intake(self._scheduler, self._speculation, self._counters, self._endings)
        self._runner_us = 0  # of the present step
        self._left_us: int | None = None  # when the last step ended, if it left work

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended, copies of others included."""
        return len(self._requests)

    @property
    def num_copies(self) -> int:
        """Unfinished requests for which an equal one is computed."""
        return self._duplicates.num_copies

    def has_unfinished(self) -> bool:
        return bool(self._requests)

    @property
    def longest_first(self) -> bool:
        """Whether the longest expected outputs of a priority start first; set it while the queue
        is all that is left, so that no long output runs on alone at the end."""
        return self._scheduler.longest_first

    @longest_first.setter
    def longest_first(self, on: bool) -> None:
        self._scheduler.longest_first = on

    def add_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        priority: int = 0,
    ) -> None:
        """Queue a prompt; a higher `priority` is more urgent, equals go first come first served.

        Raises:
            InvalidParams: a field is wrong; `param` names it.
            PromptTooLong: the prompt and one output token can never fit.
        """
        self._limits.check_params(params)
        self._check_id(request_id)
        self._limits.check_prompt(prompt_token_ids, num_output_tokens=1)
        params = self._limits.within_room(params, len(prompt_token_ids))
        edits = LogitEdits.of(params, prompt_token_ids, self._endings.end_token_ids(params))
        self._enter(Request(request_id, list(prompt_token_ids), params, priority, _now_us(), edits))

    def add_pooling_request(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        params: PoolingParams,
        priority: int = 0,
    ) -> None:
        """Queue a prompt for its embedding; it runs beside those that generate.

        Raises:
            InvalidParams: a field is wrong; `param` names it.
            PromptTooLong: the prompt can never fit.
        """
        params.validate(self.hidden_size)
        self._check_id(request_id)
        self._limits.check_prompt(prompt_token_ids, num_output_tokens=0)
        request = Request(request_id, list(prompt_token_ids), _NO_OUTPUT, priority, _now_us())
        request.pooled = PooledStates(params)
        self._enter(request)

    def abort(self, request_ids: Iterable[str]) -> list[RequestOutput]:
        """End requests now, with the tokens they have; unknown ids are ignored."""
        known = [self._requests[i] for i in dict.fromkeys(request_ids) if i in self._requests]
        now_us = _now_us()
        # Copies first: one that is aborted too must not take over from its original.
        ordered = sorted(known, key=lambda r: not self._duplicates.is_copy(r))
        ended = {request: self._abort(request, now_us) for request in ordered}
        if not self._requests:
            self._left_us = None  # what follows is idle time
        return [ended[request] for request in known]

    def step(self) -> list[RequestOutput]:
        """Run one scheduler step; returns the requests that ended in it."""
        started_us = _now_us()
        with self._profile.part("scheduling"):
            plan = self._scheduler.schedule(started_us)
        ended = self._run(plan) if plan.requests else []
        if plan.stuck is not None:
            ended.append((plan.stuck, FinishReason.ERROR, never_fits(plan.stuck, self._blocks)))
        now_us = _now_us()
        began_us = started_us if self._left_us is None else self._left_us
        self._counters.take_step(plan, now_us - began_us, self._runner_us)
        self._speculation.took(now_us - began_us, sum(plan.num_tokens))
        self._runner_us = 0
        outputs = [
            output
            for request, reason, error in ended
            for output in self._end(request, reason, error, now_us)
        ]
        self._left_us = now_us if self._requests else None
        return outputs

    def stats(self) -> EngineStats:
        """A reading of counters and gauges; cheap enough for every step, from any thread."""
        counters, used = self._counters, self._blocks.num_used_blocks
        slots = used * self._blocks.block_size
        # Only a request's last blocks can be unfilled, and those are never shared.
        unfilled = sum(
            len(r.block_table) * self._blocks.block_size - r.num_computed_tokens
            for r in list(self._scheduler.running)
        )
        return EngineStats(
            running=len(self._scheduler.running),
            waiting=self._scheduler.num_waiting,
            steps=counters.steps,
            kv_blocks_total=self._blocks.num_blocks,
            kv_blocks_used=used,
            kv_utilization=used / self._blocks.num_blocks,
            fragmentation=unfilled / slots if slots else 0.0,
            prefix_hit_tokens=self._scheduler.prefix_hit_tokens,
            prefix_query_tokens=self._scheduler.prefix_query_tokens,
            preemptions=self._scheduler.num_preemptions,
            recomputed_tokens=counters.recomputed_tokens
            + sum(r.num_recomputed_tokens for r in list(self._requests.values())),
            prompt_tokens=counters.prompt_tokens,
            output_tokens=counters.output_tokens,
            copies=counters.copies,
            guessed_tokens=counters.guessed_tokens,
            held_tokens=counters.held_tokens,
            last_step_us=counters.last_step_us,
            busy_us=counters.busy_us,
            host_us=counters.host_us,
        )

    def profile(self) -> dict[str, float]:
        """Seconds of all steps so far by part; what is left of the whole is Python elsewhere."""
        loading = self._seconds_at_load
        ran = {p: s - loading.get(p, 0.0) for p, s in self._runner.seconds().items()}
        seconds = ran | self._profile.seconds()
        return seconds | {"other": self._counters.busy_us / 1e6 - sum(seconds.values())}

    def check_integrity(self) -> None:
        """Assert that no block, request or count is lost; for tests and idle moments."""
        self._scheduler.check_integrity()
        self._duplicates.check_integrity()
        computed = [r for r in self._requests.values() if not self._duplicates.is_copy(r)]
        assert len(self._scheduler.running) + self._scheduler.num_waiting == len(computed)
        assert self._detokenizers.keys() == {r.request_id for r in computed if r.pooled is None}

    def _check_id(self, request_id: str) -> None:
        if request_id in self._requests:
            raise InvalidParams(f"The request id {request_id!r} is in use.", "request_id")

    def _run(self, plan: StepPlan) -> list[End]:
        """Run the plan on the device and take its tokens in; returns who ended and why."""
        started_us = _now_us()
        with stretch(f"run {sum(plan.num_tokens)} tokens {len(plan.requests)} rows"):
            result = self._runner.run(plan.requests, plan.num_tokens)
        self._runner_us = _now_us() - started_us
        with self._profile.part("outputs"):
            return self._intake.take(plan, result)

    def _enter(self, request: Request, alone: bool = False) -> None:
        """Queue a request, or have it wait for an equal one's answer unless it is to be `alone`."""
        self._requests[request.request_id] = request
        original = self._duplicates.join(request, alone)
        if original is not None:
            self._scheduler.set_priority(original, self._duplicates.priority_of(original))
            return
        if request.pooled is None:
            params = request.params
            skips = params.skip_special_tokens
            decode = self.tokenizer.decode if skips else self.tokenizer.decode_all
            detokenizer = Detokenizer(decode, params.stop, request.prompt_token_ids)
            self._detokenizers[request.request_id] = detokenizer
        self._scheduler.add(request)

    def _end(
        self, request: Request, reason: FinishReason, error: EngineError | None, now_us: int
    ) -> list[RequestOutput]:
        """End a computed request, and with its answer those that copy it."""
        copies = self._duplicates.dissolve(request)
        self._scheduler.remove(request)
        output = self._render(request, reason, error, now_us)
        if error is not None:  # whatever befell it, its equals have a go of their own
            for copy in copies:
                self._enter(copy, alone=True)
            return [output]
        self._scheduler.lengths.record(request, was_cut=reason is FinishReason.LENGTH)
        return [output, *(self._answer(copy, request, output, now_us) for copy in copies)]

    def _answer(
        self, copy: Request, original: Request, output: RequestOutput, now_us: int
    ) -> RequestOutput:
        copy.copy_answer(original, now_us)
        del self._requests[copy.request_id]
        self._counters.take_copy(copy)
        metrics = RequestMetrics.of(copy, now_us)
        return replace(output, request_id=copy.request_id, metrics=metrics)

    def _abort(self, request: Request, now_us: int) -> RequestOutput:
        """End one request; those that copy it go on with what it has."""
        is_copy = self._duplicates.is_copy(request)
        original = self._duplicates.leave(request)
        if original is not None:
            priority = self._duplicates.priority_of(original)
            if is_copy:
                self._scheduler.set_priority(original, priority)
            else:
                self._hand_over(request, original, priority, now_us)
        elif not is_copy:
            self._scheduler.remove(request)
        return self._render(request, FinishReason.ABORT, None, now_us)

    def _hand_over(self, request: Request, heir: Request, priority: int, now_us: int) -> None:
        """Let a copy take the place and the work of its original."""
        heir.priority = priority
        heir.take_over(request, now_us)
        if request.pooled is None:
            self._detokenizers[heir.request_id] = self._detokenizers[request.request_id]
        self._scheduler.replace(request, heir)

    def _render(
        self, request: Request, reason: FinishReason, error: EngineError | None, now_us: int
    ) -> RequestOutput:
        """Forget a request that the scheduler no longer has, and render its answer."""
        self._runner.forget(request)
        del self._requests[request.request_id]
        detokenizer = self._detokenizers.pop(request.request_id, None)
        self._counters.take_computed(request)
        token_ids = request.output_token_ids
        hides_last = bool(token_ids) and self._endings.is_end_token(request.params, token_ids[-1])
        return RequestOutput(
            request_id=request.request_id,
            token_ids=tuple(token_ids),
            text=detokenizer.text(num_hidden=int(hides_last)) if detokenizer else "",
            finish_reason=reason,
            error=error,
            metrics=RequestMetrics.of(request, now_us),
            logprobs=None if request.params.logprobs is None else tuple(request.logprobs),
            embedding=request.pooled.result()
            if request.pooled and reason is FinishReason.STOP
            else None,
        )


_NO_OUTPUT = SamplingParams(max_tokens=1)
"""What a pooling request has for parameters of an output that it never gets."""


def _now_us() -> int:
    return time.perf_counter_ns() // 1_000
