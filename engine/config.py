"""What an operator may set: one frozen record, at most 18 fields, no environment."""

from dataclasses import dataclass, field
from pathlib import Path

from engine.errors import InvalidParams
from engine.quantisation import Quantisation

BLOCK_SIZE = 32
DTYPES = ("auto", "float32", "bfloat16")
MOST_GUESSES = 7
"""With its known token a row has eight queries: the most that attention takes as one piece."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        model: folder with config.json, tokenizer.json and safetensors weights.
        device: any torch device string.
        dtype: "float32", "bfloat16", or "auto": bfloat16 where the device multiplies it natively.
        quantisation: which parts are kept in fewer bits than `dtype` has.
        max_model_len: longest sequence in tokens; None takes the model's own length.
        block_size: tokens per KV block.
        kv_memory_bytes: size of the KV pool; None takes `memory_utilization` of free memory.
        memory_utilization: share of the memory free after loading that the pool may take.
        max_num_seqs: most requests running at once.
        max_num_batched_tokens: most tokens computed in one step.
        long_prefill_tokens: most tokens one request may compute in one step.
        num_speculative_tokens: most tokens that a row may guess in a step; 0 is off.
        step_seconds: how long a step should take at most; rows, tokens and chunk are lowered until
            one does, and to where more of them gain nothing. None takes them as they are.
        watermark: share of the blocks that an admission must leave free.
        enable_prefix_caching: reuse the KV blocks of equal prefixes.
        merge_duplicates: compute requests that must get the same answer once while both are here.
        num_threads: torch's intra-op threads; None leaves torch's own choice.
        preempt_every: for tests: force a preemption every so many steps; 0 is off.
    """

    model: Path
    device: str = "cpu"
    dtype: str = "auto"
    quantisation: Quantisation = field(default_factory=Quantisation)
    max_model_len: int | None = None
    block_size: int = BLOCK_SIZE
    kv_memory_bytes: int | None = None
    memory_utilization: float = 0.5
    max_num_seqs: int = 128
    max_num_batched_tokens: int = 512
    long_prefill_tokens: int = 256
    num_speculative_tokens: int = MOST_GUESSES
    step_seconds: float | None = None
    watermark: float = 0.03
    enable_prefix_caching: bool = True
    merge_duplicates: bool = True
    num_threads: int | None = None
    preempt_every: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InvalidParams(f"dtype must be one of {', '.join(DTYPES)}.", "dtype")
        counts = (
            "max_model_len",
            "block_size",
            "kv_memory_bytes",
            "max_num_seqs",
            "max_num_batched_tokens",
            "long_prefill_tokens",
            "num_threads",
        )
        for name in counts:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidParams(f"{name} must be at least 1.", name)
        if not 0 <= self.num_speculative_tokens <= MOST_GUESSES:
            raise InvalidParams(
                f"num_speculative_tokens must be from 0 to {MOST_GUESSES}.",
                "num_speculative_tokens",
            )
        if self.step_seconds is not None and self.step_seconds <= 0:
            raise InvalidParams("step_seconds must be above 0.", "step_seconds")
        if not 0 < self.memory_utilization <= 1:
            raise InvalidParams(
                "memory_utilization must be above 0 and at most 1.", "memory_utilization"
            )
        if not 0 <= self.watermark < 1:
            raise InvalidParams("watermark must be at least 0 and below 1.", "watermark")
        if self.preempt_every < 0:
            raise InvalidParams("preempt_every must not be negative.", "preempt_every")
