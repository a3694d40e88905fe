"""Attention backends: the protocol, and the choice of one for a device."""

import torch

from engine.attention.backend import AttentionBackend, LayerShape
from engine.attention.cpu import DTYPES, CpuAttention
from engine.attention.reference import ReferenceAttention
from engine.kernels import KernelsUnavailable, load_kernels

__all__ = ["AttentionBackend", "open_attention"]


def open_attention(
    shapes: list[LayerShape], block_size: int, device: torch.device, dtype: torch.dtype
) -> AttentionBackend:
    """Return the best backend for `device`; its pool is not allocated yet."""
    if device.type == "cuda":
        # Only here: Triton is not installed, and takes seconds to import, where no GPU is.
        from engine.attention.triton import TritonAttention

        return TritonAttention(shapes, block_size, device, dtype)
    reference = ReferenceAttention(shapes, block_size, device, dtype)
    if device.type != "cpu" or dtype not in DTYPES:
        return reference
    try:
        return CpuAttention(load_kernels(), shapes, block_size, dtype)
    except KernelsUnavailable as error:
        reference.name = f"torch reference ({error})"
        return reference
