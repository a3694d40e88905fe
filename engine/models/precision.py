"""A network in float32 for a while, so that a probe sees what it computes and not how it rounds.

In bfloat16 a router of experts may send a token elsewhere, and a state of long memory may drift,
by rounding alone.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from engine.device_memory import free_memory

ROOM = 1.2
"""Share of the float32 weights that must be free before they are made."""


def fits_in_float32(network: torch.nn.Module) -> bool:
    """Whether there is memory for the weights in float32, beside those of now."""
    weights = list(network.parameters())
    num_bytes = sum(weight.numel() * 4 for weight in weights)
    return num_bytes * ROOM <= free_memory(weights[0].device)


@contextmanager
def in_float32(network: torch.nn.Module) -> Iterator[None]:
    """Every weight in float32; afterwards each has its own dtype and value again."""
    # Parameters stay the objects they are and change inside; buffers are replaced.
    dtypes = [(weight, weight.dtype) for weight in network.parameters()]
    buffers = [(module, dict(module._buffers)) for module in network.modules()]
    network.float()
    try:
        yield
    finally:
        for weight, dtype in dtypes:
            weight.data = weight.data.to(dtype)
        for module, own in buffers:
            module._buffers.update(own)
        if any(weight.is_cuda for weight, _ in dtypes):
            torch.cuda.empty_cache()  # the pool is sized by what the device says is free
