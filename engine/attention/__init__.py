"""Attention backends: the protocol, and the choice of one for a device."""

import torch

from engine.attention.backend import AttentionBackend, LayerShape
from engine.attention.cpu import DTYPES, CpuAttention
from engine.attention.reference import ReferenceAttention
from engine.errors import InvalidParams
from engine.kernels import KernelsUnavailable, load_kernels
from engine.quantisation import PLAIN

__all__ = ["AttentionBackend", "open_attention"]


def open_attention(
    shapes: list[LayerShape],
    block_size: int,
    device: torch.device,
    dtype: torch.dtype,
    kv_cache: str = PLAIN,
) -> AttentionBackend:
    """Return the best backend for `device`; its pool is not allocated yet.

    Args:
        kv_cache: "auto", or "int8" for a pool with a scale per token and head.

    Raises:
        InvalidParams: the device's backend has no such pool.
    """
    if device.type == "cpu" and dtype in DTYPES:
        try:
            return CpuAttention(load_kernels(), shapes, block_size, dtype, kv_cache)
        except KernelsUnavailable as error:
            _refuse(kv_cache, str(error))
            reference = ReferenceAttention(shapes, block_size, device, dtype)
            reference.name = f"torch reference ({error})"
            return reference
    _refuse(kv_cache, f"this runs on {device} in {dtype}")
    if device.type == "cuda":
        # Only here: Triton is not installed, and takes seconds to import, where no GPU is.
        from engine.attention.triton import TritonAttention

        return TritonAttention(shapes, block_size, device, dtype)
    return ReferenceAttention(shapes, block_size, device, dtype)


def _refuse(kv_cache: str, reason: str) -> None:
    if kv_cache != PLAIN:
        raise InvalidParams(
            f"The KV cache can't be in {kv_cache}: only attention in C++ knows it, and {reason}. "
            f"Set kv_cache to {PLAIN}.",
            "kv_cache",
        )
