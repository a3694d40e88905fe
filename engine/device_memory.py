"""The one place that looks at a device: which one it is, and its memory."""

import gc
from pathlib import Path

import psutil
import torch

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
CGROUP_USAGE = Path("/sys/fs/cgroup/memory.current")


def gpu_uuid(device: torch.device) -> str | None:
    """The name by which its driver knows an NVIDIA GPU, such as ``GPU-8f6e…``; None of others."""
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


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


def release_memory() -> None:
    """Give back to the devices what nothing refers to any more, cycles included."""
    gc.collect()
    torch.cuda.empty_cache()  # nothing where CUDA was not used


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
