"""The backend that runs our own engine in this process."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidParams
from engine.llm_engine import LLMEngine
from engine.outputs import RequestOutput
from engine.sampling_params import SamplingParams
from engine.tokenizer import Tokenizer
from runner.config import Settings
from runner.domain.leases import ItemInput, Lease, LineMetrics
from runner.inference.backend import Completion, LineRefusal, Outcome, Task
from runner.inference.requests import BadBody, Prompt, parse_request


class LocalBackend:
    """An engine with one resident model.

    ``prepare`` has a tokenizer of its own, for it is called from another thread than the rest.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._engine = LLMEngine(engine_config(folder, settings))
        self._tokenizer = Tokenizer(folder)
        self._tasks: dict[str, Task] = {}
        self.rows = self._engine.max_num_seqs
        self.description = self._engine.description

    def prepare(self, lease: Lease, item: ItemInput) -> Task:
        """Parse a line and turn its prompt into token ids."""
        try:
            request = parse_request(item.data, lease, item.idx)
            token_ids = self._tokenise(request.prompt)
        except BadBody as error:
            raise LineRefusal(400, error.code, error.message, error.param) from None
        except EngineError as error:
            raise _refusal(error) from None
        key = f"{lease.key.job_id}/{item.idx}/{lease.key.epoch}"
        return Task(key, lease, item.idx, item.custom_id, request, tuple(token_ids))

    def submit(self, task: Task) -> None:
        """Queue a task in the engine."""
        room = self._engine.max_model_len - len(task.prompt_token_ids)
        limit = task.request.max_tokens
        params = SamplingParams(
            max_tokens=max(1, room if limit is None else min(limit, room)),
            temperature=task.request.temperature,
            top_p=task.request.top_p,
            top_k=task.request.top_k,
            seed=task.request.seed,
            stop=task.request.stop,
            stop_token_ids=task.request.stop_token_ids,
            ignore_eos=task.request.ignore_eos,
        )
        try:
            self._engine.add_request(task.key, task.prompt_token_ids, params, task.lease.priority)
        except EngineError as error:
            raise _refusal(error) from None
        self._tasks[task.key] = task

    def step(self) -> list[Outcome]:
        """Run one engine step."""
        return [self._outcome(output) for output in self._engine.step()]

    def abort(self, keys: Iterable[str]) -> int:
        """Drop tasks and free their memory at once."""
        outputs = self._engine.abort(keys)
        for output in outputs:
            del self._tasks[output.request_id]
        return sum(output.metrics.device_us for output in outputs)

    @property
    def unfinished(self) -> int:
        """Tasks submitted and not ended."""
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

    def _outcome(self, output: RequestOutput) -> Outcome:
        task = self._tasks.pop(output.request_id)
        metrics = LineMetrics(**asdict(output.metrics))
        if output.error is not None:
            return Outcome(task, _refusal(output.error), metrics)
        return Outcome(task, Completion(output.text, output.finish_reason.value), metrics)


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


def _refusal(error: EngineError) -> LineRefusal:
    param = error.param if isinstance(error, InvalidParams) else None
    status = 500 if error.code == "invalid_logits" else 400
    return LineRefusal(status, error.code, str(error), param)
