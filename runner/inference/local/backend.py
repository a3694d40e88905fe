"""The backend that runs our own engine in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidParams
from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.token_logprobs import TokenLogprobs
from engine.tokenizer import Tokenizer
from runner.config import Settings
from runner.domain.lanes import Lane
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import (
    Completion,
    Likelihood,
    LineRefusal,
    Outcome,
    Task,
    TokenLikelihood,
)
from runner.inference.bodies import BadBody
from runner.inference.fan_out import Choice, OpenLines
from runner.inference.requests import Prompt, parse_request


class LocalBackend:
    """An engine with one resident model.

    ``prepare`` has a tokenizer of its own, for it is called from another thread than the rest.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._engine = LLMEngine(engine_config(folder, settings))
        self._tokenizer = Tokenizer(folder)
        self._lines = OpenLines()
        self.rows = self._engine.max_num_seqs
        self.description = self._engine.description
        self.lane = Lane(self._engine.lane, self._engine.lane_reason)

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse a line and turn its prompts into token ids."""
        try:
            request = parse_request(item.data, lease, item.idx)
            prompts = tuple(tuple(self._tokenise(prompt)) for prompt in request.prompts)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        except EngineError as error:
            raise _refusal(error) from None
        key = f"{lease.key.job_id}/{item.idx}/{lease.key.epoch}"
        return Task(key, lease, item.idx, item.custom_id, request, prompts)

    def submit(self, task: Task) -> None:
        """Queue a task's choices in the engine: all of them, or none."""
        choices = self._lines.add(task)
        try:
            for choice in choices:
                self._engine.add_request(
                    choice.key, choice.prompt_token_ids, self._params(choice), task.lease.priority
                )
        except EngineError as error:
            self.abort([task.key])
            raise _refusal(error) from None

    def step(self) -> list[Outcome]:
        """Run one engine step."""
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
        """Sequences submitted and not ended."""
        return self._engine.num_unfinished

    def stats(self) -> Mapping[str, float]:
        """The engine's own counters and gauges."""
        return asdict(self._engine.stats())

    def _tokenise(self, prompt: Prompt) -> Iterable[int]:
        if prompt.messages is not None:
            return self._tokenizer.render_chat(prompt.messages)
        if prompt.text is not None:
            return self._tokenizer.encode(prompt.text, add_special_tokens=True)
        return prompt.token_ids or ()

    def _params(self, choice: Choice) -> SamplingParams:
        """The engine's parameters of one choice, within the room that its prompt leaves."""
        asked = choice.task.request.sampling
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
        )

    def _abort(self, choice_keys: list[str]) -> None:
        for output in self._engine.abort(choice_keys):
            self._lines.end(output.request_id, None, _metrics(output))

    def _answer(self, output: RequestOutput) -> Completion | LineRefusal:
        if output.error is not None:
            return _refusal(output.error)
        choice = self._lines.choice(output.request_id)
        text = self._echo(choice) + output.text if choice.task.request.echo else output.text
        likelihoods = None
        if output.logprobs is not None:
            likelihoods = tuple(map(self._likelihood, output.token_ids, output.logprobs))
        return Completion(text, output.finish_reason.value, likelihoods)

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
    """Rows and tokens of a step. On a CPU a step must end within a second, to hear a cancel."""

    rows: int
    tokens: int


_DEFAULTS = {"cpu": _DeviceDefaults(rows=64, tokens=256)}
_ACCELERATOR = _DeviceDefaults(rows=256, tokens=8192)


def engine_config(folder: Path, settings: Settings) -> EngineConfig:
    """The engine's settings, from ours."""
    defaults = _DEFAULTS.get(settings.device.partition(":")[0], _ACCELERATOR)
    return EngineConfig(
        model=folder,
        device=settings.device,
        dtype=settings.dtype,
        memory_utilization=settings.memory_utilization,
        max_num_seqs=settings.max_num_seqs or defaults.rows,
        max_num_batched_tokens=settings.max_num_batched_tokens or defaults.tokens,
    )


def _metrics(output: RequestOutput) -> LineMetrics:
    return LineMetrics(**asdict(output.metrics))


def _refusal(error: EngineError) -> LineRefusal:
    param = error.param if isinstance(error, InvalidParams) else None
    status = 500 if error.code == "invalid_logits" else 400
    return LineRefusal(status, error.code, str(error), param)
