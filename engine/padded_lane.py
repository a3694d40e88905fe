"""The lane of models that keep transformers' own attention and caches.

The scheduler counts its memory in blocks too; here a block is a number of tokens' worth of bytes in
whatever cache the model keeps.
"""

from dataclasses import replace

import torch

from engine.config import EngineConfig
from engine.errors import InvalidParams
from engine.kv_cache import pool_blocks, pool_bytes
from engine.lane import PADDED, Lane
from engine.models.cache_rows import cache_bytes
from engine.models.padded import PaddedModel
from engine.padded_runner import FREE_PADDING, MAX_PADDING, PaddedRunner
from engine.quantisation import PLAIN

MAX_SEATS = 64
"""Sequences of the padded lane where their number is ours to choose: each has a cache to copy."""
MEASURED_LENGTH = 9
"""Tokens of the sequence whose cache is weighed against that of a single token."""


def open_padded_lane(model: PaddedModel, config: EngineConfig, num_token_ids: int) -> Lane:
    """As `open_lane`, for a model that keeps transformers' caches.

    Raises:
        InvalidParams: the memory doesn't hold one sequence, or a KV cache of ours was asked for.
    """
    if config.quantisation.kv_cache != PLAIN:
        raise InvalidParams(
            f"The KV cache can't be in {config.quantisation.kv_cache}: this model runs over "
            f"transformers' own ({model.reason}). Set kv_cache to {PLAIN}.",
            "kv_cache",
        )
    sequence_bytes, token_bytes = _weigh(model)
    max_num_seqs, left = _seats(config, sequence_bytes, token_bytes)
    config = replace(
        config,
        max_num_seqs=max_num_seqs,
        kv_memory_bytes=max(1, left),
        # Equal prompts are computed again: transformers' caches can't be shared.
        enable_prefix_caching=False,
        # A cache of transformers' can't be cut back behind a guess that fails.
        num_speculative_tokens=0,
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
