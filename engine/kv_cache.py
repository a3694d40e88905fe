"""How large the KV pool may be."""

import torch

from engine.config import EngineConfig
from engine.device_memory import free_memory
from engine.errors import InvalidParams


def pool_blocks(config: EngineConfig, block_bytes: int, max_model_len: int) -> int:
    """Number of KV blocks for this device and configuration.

    Never more than `max_num_seqs` sequences of full length could use.

    Raises:
        InvalidParams: the memory doesn't hold a single block.
    """
    budget = pool_bytes(config)
    blocks_per_sequence = -(-max_model_len // config.block_size)
    num_blocks = min(budget // block_bytes, blocks_per_sequence * config.max_num_seqs)
    if num_blocks < 1:
        raise InvalidParams(
            f"The KV pool of {budget:,} bytes doesn't hold one block of {block_bytes:,} bytes; "
            "give it more memory.",
            "kv_memory_bytes",
        )
    return num_blocks


def pool_bytes(config: EngineConfig) -> int:
    """Bytes that the pool may take."""
    if config.kv_memory_bytes is not None:
        return config.kv_memory_bytes
    return int(free_memory(torch.device(config.device)) * config.memory_utilization)
