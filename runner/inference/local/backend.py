"""The backend that runs our own engine in this process."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.device_memory import release_memory
from engine.errors import EngineError, InvalidParams, PromptTooLong
from engine.grammar import Grammar
from engine.llm_engine import LLMEngine
from engine.outputs import FinishReason, RequestOutput
from engine.pooling import Pooling, PoolingParams
from engine.quantisation import INT4, INT8, PLAIN, Quantisation
from engine.sampling_params import SamplingParams
from engine.token_logprobs import TokenLogprobs
from engine.tokenizer import Tokenizer
from engine.tracing import stretch
from runner.config import Settings
from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import (
    Completion,
    Likelihood,
    LineRefusal,
    Outcome,
    Recording,
    Task,
    TokenLikelihood,
)
from runner.inference.bodies import BadBody
from runner.inference.fan_out import Choice, OpenLines
from runner.inference.local.constraints import Constraints
from runner.inference.local.recording import TorchRecording
from runner.inference.prompts import TokenisedLine, tokenise
from runner.inference.requests import LineRequest, parse_request, wire_param


class LocalBackend:
    """An engine with one resident model.

    ``prepare`` has a tokenizer of its own, for it is called from another thread than the rest.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._engine = LLMEngine(engine_config(folder, settings))
        self._tokenizer = Tokenizer(folder)
        self._constraints = Constraints(self._tokenizer)
        self._lines = OpenLines()
        self.rows = self._engine.max_num_seqs
        self.description = self._engine.description
        self.lane = Lane(self._engine.lane, self._engine.lane_reason)
        self.gpu_uuid = self._engine.gpu_uuid

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse a line, turn its prompts into token ids, and compile what form it asks for."""
        try:
            request = parse_request(item.data, lease, item.idx)
            line, grammar = self._for_this_model(request)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        except EngineError as error:
            raise _refusal(error, lease.endpoint) from None
        return Task.of(lease, item, line, grammar)

    def submit(self, task: Task) -> None:
        """Queue a task's choices in the engine: all of them, or none."""
        choices = self._lines.add(task)
        try:
            for choice in choices:
                self._add(choice)
        except EngineError as error:
            self.abort([task.key])
            raise _refusal(error, task.lease.endpoint) from None

    def step(self) -> list[Outcome]:
        """Run one engine step."""
        with stretch("step"):
            for output in self._engine.step():
                answer = self._answer(output)
                self._lines.end(output.request_id, answer, _metrics(output))
            self._abort(self._lines.doomed())
            return self._lines.take_ended()

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks and free their memory at once."""
        keys = list(keys)
        self._abort(self._lines.running(keys))
        return self._lines.drop(keys)

    @property
    def unfinished(self) -> int:
        """Sequences to compute that have not ended; copies of them take no row."""
        return self._engine.num_unfinished - self._engine.num_copies

    def expect_more(self, more: bool) -> None:
        """With nothing to follow, the longest outputs go first."""
        self._engine.longest_first = not more

    def record(self) -> Recording:
        """Begin to record torch's operations, and those of the device."""
        return TorchRecording()

    def stats(self) -> Mapping[str, float]:
        """The engine's own counters and gauges."""
        return asdict(self._engine.stats())

    def close(self) -> None:
        """Free what the model and its caches hold, so that another can be loaded."""
        del self._engine
        release_memory()

    def _add(self, choice: Choice) -> None:
        priority, options = choice.task.lease.priority, choice.task.request.embedding
        prompt = choice.prompt_token_ids
        if options is None:
            self._engine.add_request(choice.key, prompt, self._params(choice), priority)
            return
        pooling = options.pooling or self._engine.default_pooling
        assert pooling is not None, "a line that needs one was refused"
        params = PoolingParams(Pooling(pooling), options.dimensions)
        self._engine.add_pooling_request(choice.key, prompt, params, priority)

    def _for_this_model(self, request: LineRequest) -> tuple[TokenisedLine, Grammar | None]:
        """The prompts of a line, and the grammar that its answers must follow."""
        try:
            self._check_pooling(request)
            tokens = self._constraints.prompt_tokens(request.tools)
            line = tokenise(request, tokens, self._engine.max_model_len)
            return line, self._constraints.grammar(request)
        except BadBody as error:
            raise request.told(error) from None

    def _check_pooling(self, request: LineRequest) -> None:
        options = request.embedding
        if options is not None and not options.pooling and self._engine.default_pooling is None:
            raise BadBody(
                "The model's own way of pooling is not supported; choose last or mean.", "pooling"
            )

    def _params(self, choice: Choice) -> SamplingParams:
        """The engine's parameters of one choice, within the room that its prompt leaves."""
        task = choice.task
        asked = task.request.sampling
        room = self._engine.max_model_len - len(choice.prompt_token_ids)
        limit = room if asked.max_tokens is None else min(asked.max_tokens, room)
        return SamplingParams(
            max_tokens=max(1, limit),
            temperature=asked.temperature,
            top_p=asked.top_p,
            top_k=asked.top_k,
            seed=choice.seed,
            stop=asked.stop,
            stop_token_ids=asked.stop_token_ids,
            ignore_eos=asked.ignore_eos,
            min_p=asked.min_p,
            presence_penalty=asked.presence_penalty,
            frequency_penalty=asked.frequency_penalty,
            repetition_penalty=asked.repetition_penalty,
            logit_bias=asked.logit_bias,
            min_tokens=asked.min_tokens,
            logprobs=asked.logprobs,
            grammar=task.grammar if isinstance(task.grammar, Grammar) else None,
            # Markers of calls may be special tokens.
            skip_special_tokens=task.request.tools is None,
        )

    def _abort(self, choice_keys: list[str]) -> None:
        for output in self._engine.abort(choice_keys):
            self._lines.end(output.request_id, None, _metrics(output))

    def _answer(self, output: RequestOutput) -> Completion | LineRefusal:
        if output.error is not None:
            endpoint = self._lines.choice(output.request_id).task.lease.endpoint
            return _refusal(output.error, endpoint)
        if output.embedding is not None:
            vector = output.embedding.astype("<f4").tobytes()
            return Completion("", output.finish_reason.value, vector=vector)
        choice = self._lines.choice(output.request_id)
        request = choice.task.request
        said = self._constraints.read(output.text, request.tools)
        text = self._echo(choice) + said.text if request.echo else said.text
        reason = output.finish_reason.value
        if said.calls and output.finish_reason is FinishReason.STOP:
            reason = "tool_calls"
        likelihoods = None
        if output.logprobs is not None:
            likelihoods = tuple(map(self._likelihood, output.token_ids, output.logprobs))
        return Completion(text, reason, likelihoods, tool_calls=said.calls)

    def _echo(self, choice: Choice) -> str:
        text = choice.task.request.prompts[choice.prompt].text
        if text is not None:
            return text
        return self._engine.tokenizer.decode(choice.prompt_token_ids)

    def _likelihood(self, token_id: int, told: TokenLogprobs) -> TokenLikelihood:
        text = self._engine.tokenizer.token_bytes
        return TokenLikelihood(
            Likelihood(text(token_id), told.logprob),
            tuple(Likelihood(text(other), logprob) for other, logprob in told.top),
        )


@dataclass(frozen=True, slots=True)
class _DeviceDefaults:
    """The largest steps by device.

    On a CPU a step must end soon, to hear a cancel and to let urgent lines in, and what fits
    into that time depends on the model: the engine finds it when the model has loaded.

    ``chunk``: most tokens of one prompt in a step, so that a long one leaves room for others.
    """

    rows: int
    tokens: int
    chunk: int
    seconds: float | None


_DEFAULTS = {"cpu": _DeviceDefaults(rows=256, tokens=512, chunk=256, seconds=1.0)}
_ACCELERATOR = _DeviceDefaults(rows=256, tokens=8192, chunk=2048, seconds=None)


def engine_config(folder: Path, settings: Settings) -> EngineConfig:
    """The engine's settings, from ours; a size that is set is taken as it is."""
    defaults = _DEFAULTS.get(settings.device.partition(":")[0], _ACCELERATOR)
    is_set = settings.max_num_seqs is not None or settings.max_num_batched_tokens is not None
    return EngineConfig(
        model=folder,
        device=settings.device,
        dtype=settings.dtype,
        quantisation=_quantisation(settings.quantize),
        memory_utilization=settings.memory_utilization,
        max_num_seqs=settings.max_num_seqs or defaults.rows,
        max_num_batched_tokens=settings.max_num_batched_tokens or defaults.tokens,
        long_prefill_tokens=defaults.chunk,
        step_seconds=None if is_set else defaults.seconds,
    )


def _quantisation(parts: Collection[str]) -> Quantisation:
    weights = next((part for part in parts if part in (INT8, INT4)), PLAIN)
    return Quantisation(weights, INT8 if "kv-int8" in parts else PLAIN)


def _metrics(output: RequestOutput) -> LineMetrics:
    return LineMetrics(**asdict(output.metrics))


def _refusal(error: EngineError, endpoint: str) -> LineRefusal:
    param = wire_param(error.param, endpoint) if isinstance(error, InvalidParams) else None
    status = 500 if error.code == "invalid_logits" else 400
    # The engine knows nothing of policies; whoever reads this should.
    way_out = " Or let truncate_prompt cut it." if isinstance(error, PromptTooLong) else ""
    return LineRefusal(status, error.code, f"{error}{way_out}", param)
