"""A lease as a worker holds it, and a finished line as it hands it back."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from runner.domain.defaults import NO_DEFAULTS, Defaults
from runner.domain.ids import ApiKeyId, FileId, JobId, ModelId, ProjectId
from runner.domain.pricing import Price


@dataclass(frozen=True, slots=True)
class ShardKey:
    """One lease of one shard. ``epoch`` is the fencing token: each lease has a higher one."""

    job_id: JobId
    shard_no: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """A worker's time-bound hold of a shard, with what running its lines needs."""

    key: ShardKey
    attempt: int
    suspect: bool
    priority: int
    project_id: ProjectId
    api_key_id: ApiKeyId | None
    model_id: ModelId
    price: Price
    endpoint: str
    input_file_id: FileId
    idx: tuple[int, ...]
    defaults: Defaults = NO_DEFAULTS
    reserved: Mapping[int, int] = field(default_factory=dict, hash=False)
    """Nano-units that a budget holds ready for a line, by its ``idx``; empty without a budget."""


@dataclass(frozen=True, slots=True)
class ItemInput:
    """A line to run, as it stands in its file."""

    idx: int
    custom_id: str
    data: bytes


@dataclass(frozen=True, slots=True)
class LineMetrics:
    """What the engine measured for one line (times in microseconds, by one monotonic clock).

    ``truncated_tokens`` were cut off its prompt before; the engine has not seen them.
    ``energy_uj`` is in microjoules, None where nothing measures the device.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    queue_us: int = 0
    prefill_us: int = 0
    first_token_us: int = 0
    decode_us: int = 0
    total_us: int = 0
    device_us: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0
    truncated_tokens: int = 0
    energy_uj: int | None = None


@dataclass(frozen=True, slots=True)
class FinishedItem:
    """The terminal answer of one item. Only an answer that did not fail is billed."""

    lease: Lease
    idx: int
    failed: bool
    line: bytes
    metrics: LineMetrics
