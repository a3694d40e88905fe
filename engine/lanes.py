"""The two ways to compute a model, behind one shape: our paged attention, or transformers' own.

The scheduler counts the padded lane's memory in blocks too; there a block is a number of tokens'
worth of bytes in whatever cache the model keeps.
"""

from dataclasses import dataclass, replace

import torch

from engine.attention import open_attention
from engine.config import EngineConfig
from engine.errors import InvalidParams
from engine.kv_cache import pool_blocks, pool_bytes
from engine.model_runner import ModelRunner, Runner
from engine.models import FusedModel, LoadedModel, PaddedModel
from engine.models.cache_rows import cache_bytes
from engine.padded_runner import FREE_PADDING, MAX_PADDING, PaddedRunner
from engine.quantisation import PLAIN
from engine.step_size import fit_step

PAGED = "paged"
PADDED = "padded"

MAX_SEATS = 64
"""Sequences of the padded lane where their number is ours to choose: each has a cache to copy."""
MEASURED_LENGTH = 9
"""Tokens of the sequence whose cache is weighed against that of a single token."""


@dataclass(frozen=True, slots=True)
class Lane:
    """How a model runs.

    Attributes:
        name: PAGED or PADDED.
        reason: why it isn't PAGED; empty if it is.
        details: for people, and names the lane.
        runner: computes the steps.
        num_blocks: of the pool.
        config: the settings that hold in this lane.
        whole_prompts: a prompt can't be cut into chunks.
    """

    name: str
    reason: str
    details: str
    runner: Runner
    num_blocks: int
    config: EngineConfig
    whole_prompts: bool


def open_lane(
    model: LoadedModel | FusedModel | PaddedModel, config: EngineConfig, num_token_ids: int
) -> Lane:
    """Size the pool and make ready to run; `num_token_ids` ids from 0 may be sampled.

    Raises:
        InvalidParams: the memory doesn't hold one sequence, or one block, or the lane has no such
            KV cache as was asked for.
    """
    if isinstance(model, PaddedModel):
        if config.quantisation.kv_cache != PLAIN:
            raise InvalidParams(
                f"The KV cache can't be in {config.quantisation.kv_cache}: this model runs over "
                f"transformers' own ({model.reason}). Set kv_cache to {PLAIN}.",
                "kv_cache",
            )
        return _padded(model, config, num_token_ids)
    kv_cache = config.quantisation.kv_cache
    attention = open_attention(model.shapes, config.block_size, model.device, model.dtype, kv_cache)
    num_blocks = pool_blocks(config, attention.block_bytes(), model.max_model_len)
    attention.allocate(num_blocks)
    details = f"attention: {attention.name}, lane: {PAGED}"
    runner = ModelRunner(model, attention, num_token_ids)
    if config.step_seconds is not None:
        config = fit_step(runner, config, num_blocks, model.max_model_len)
    return Lane(PAGED, "", details, runner, num_blocks, config, whole_prompts=False)


def _padded(model: PaddedModel, config: EngineConfig, num_token_ids: int) -> Lane:
    sequence_bytes, token_bytes = _weigh(model)
    max_num_seqs, left = _seats(config, sequence_bytes, token_bytes)
    # Equal prompts are computed again: transformers' caches can't be shared.
    config = replace(
        config, max_num_seqs=max_num_seqs, kv_memory_bytes=max(1, left), enable_prefix_caching=False
    )
    if token_bytes:
        num_blocks = pool_blocks(config, token_bytes * config.block_size, model.max_model_len)
    else:  # blocks are only counted: as many as the sequences can ask for
        num_blocks = max_num_seqs * -(-model.max_model_len // config.block_size)
    how = "batches are padded" if model.batches else "one sequence at a time"
    details = f"attention: transformers, lane: {PADDED}, {how} ({model.reason})"
    runner = PaddedRunner(model, num_token_ids)
    return Lane(PADDED, model.reason, details, runner, num_blocks, config, whole_prompts=True)


def _seats(config: EngineConfig, sequence_bytes: int, token_bytes: int) -> tuple[int, int]:
    """How many sequences may run at once, and the bytes that are left for their tokens."""
    budget = pool_bytes(config)
    # What is taken whatever the length must leave half to what grows, where anything does.
    for_sequences = budget // 2 if token_bytes else budget
    max_num_seqs = (
        min(config.max_num_seqs, MAX_SEATS) if config.step_seconds else config.max_num_seqs
    )
    if sequence_bytes:
        max_num_seqs = min(max_num_seqs, for_sequences // sequence_bytes)
    if max_num_seqs < 1:
        raise InvalidParams(
            f"The memory of {budget:,} bytes doesn't hold what one sequence takes before its "
            f"first token, {sequence_bytes:,} bytes with copies; give it more memory.",
            "kv_memory_bytes",
        )
    return max_num_seqs, budget - max_num_seqs * sequence_bytes


@torch.inference_mode()
def _weigh(model: PaddedModel) -> tuple[int, int]:
    """Bytes that a sequence takes whatever its length, and that each of its tokens adds.

    Both with the copies that the lane makes. A sliding window makes caches grow less than this.
    """
    length = min(MEASURED_LENGTH, model.max_model_len)
    long = cache_bytes(model.start([0] * length)[1])
    short = cache_bytes(model.start([0])[1])
    token_bytes = -(-(long - short) // max(1, length - 1))
    sequence_bytes = max(0, short - token_bytes)
    if not model.batches:
        return 2 * sequence_bytes, 2 * token_bytes
    # Rows are copied into a new batch beside the old one; a batch is padded.
    copies = 2 * (1 + MAX_PADDING)
    return int((sequence_bytes + FREE_PADDING * token_bytes) * copies), int(token_bytes * copies)
