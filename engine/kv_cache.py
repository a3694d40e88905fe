"""How large the KV pool may be: the one place that looks at the device's memory."""

from pathlib import Path

import psutil
import torch

from engine.config import EngineConfig
from engine.errors import InvalidParams

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USAGE = Path("/sys/fs/cgroup/memory.current")


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


def free_memory(device: torch.device) -> int:
    """Bytes that can be allocated on `device` now."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free)
    available = int(psutil.virtual_memory().available)
    limit = _read_number(CGROUP_LIMIT)
    usage = _read_number(CGROUP_USAGE)
    # In a container the host's free memory is not ours to take.
    if limit is not None and usage is not None:
        available = min(available, max(0, limit - usage))
    return available


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
