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
from engine.models import LoadedModel, PaddedModel
from engine.models.cache_rows import cache_bytes
from engine.padded_runner import MAX_PADDING, PaddedRunner

PAGED = "paged"
PADDED = "padded"

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


def open_lane(model: LoadedModel | PaddedModel, config: EngineConfig, num_token_ids: int) -> Lane:
    """Size the pool and make ready to run; `num_token_ids` ids from 0 may be sampled.

    Raises:
        InvalidParams: the memory doesn't hold one sequence, or one block.
    """
    if isinstance(model, PaddedModel):
        return _padded(model, config, num_token_ids)
    attention = open_attention(model.shapes, config.block_size, model.device, model.dtype)
    num_blocks = pool_blocks(config, attention.block_bytes(), model.max_model_len)
    attention.allocate(num_blocks)
    details = f"attention: {attention.name}, lane: {PAGED}"
    runner = ModelRunner(model, attention, num_token_ids)
    return Lane(PAGED, "", details, runner, num_blocks, config, whole_prompts=False)


def _padded(model: PaddedModel, config: EngineConfig, num_token_ids: int) -> Lane:
    sequence_bytes, token_bytes = _weigh(model)
    # Rows are copied into a new batch beside the old one; a batch is padded.
    copies = 2 * (1 + MAX_PADDING) if model.batches else 2
    budget = pool_bytes(config)
    max_num_seqs = config.max_num_seqs
    if sequence_bytes:
        # States must leave half of the memory to what grows by the token, where anything does.
        for_states = budget // 2 if token_bytes else budget
        max_num_seqs = min(max_num_seqs, int(for_states / (sequence_bytes * copies)))
        if max_num_seqs < 1:
            raise InvalidParams(
                f"The memory of {budget:,} bytes doesn't hold one sequence's state of "
                f"{sequence_bytes:,} bytes with its copies; give it more memory.",
                "kv_memory_bytes",
            )
    left = budget - int(max_num_seqs * sequence_bytes * copies)
    # Equal prompts are computed again: transformers' caches can't be shared.
    config = replace(
        config, max_num_seqs=max_num_seqs, kv_memory_bytes=left, enable_prefix_caching=False
    )
    block_bytes = max(1, int(token_bytes * config.block_size * copies))
    num_blocks = pool_blocks(config, block_bytes, model.max_model_len)
    how = "batches are padded" if model.batches else "one sequence at a time"
    details = f"attention: transformers, lane: {PADDED}, {how} ({model.reason})"
    runner = PaddedRunner(model, num_token_ids)
    return Lane(PADDED, model.reason, details, runner, num_blocks, config, whole_prompts=True)


@torch.inference_mode()
def _weigh(model: PaddedModel) -> tuple[int, int]:
    """Bytes that a sequence takes whatever its length, and that each of its tokens adds.

    A sliding window makes caches grow less than this, never more.
    """
    length = min(MEASURED_LENGTH, model.max_model_len)
    long = cache_bytes(model.start([0] * length)[1])
    short = cache_bytes(model.start([0])[1])
    token_bytes = -(-(long - short) // max(1, length - 1))
    return max(0, short - token_bytes), token_bytes
