"""Linear layers of any family over weights in the kernels' panels, where that is faster.

For models whose layers aren't fused: transformers' own code runs, and only its products are ours.
"""

import ctypes
import time
from collections.abc import Callable, Iterator

import torch
from torch import nn

from engine.attention.cpu import DTYPES, num_threads
from engine.kernels import Kernels
from engine.kernels.library import Matrix
from engine.kernels.memory import zeroed
from engine.models.llama import INPUT_MULTIPLE
from engine.models.low_bits import PANEL

_ROWS = (16, 256)
"""What is timed: a few lines at the end of a job, and a full step."""
_ROUNDS = 3
_PROOF_ROWS = 3
_TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Largest difference allowed, as a share of a layer's largest output."""


class PackedLinear(nn.Module):
    """A linear layer with a copy of another one's weight in panels."""

    def __init__(self, kernels: Kernels, linear: nn.Linear) -> None:
        super().__init__()
        self._functions = kernels.functions
        self._dtype = linear.weight.dtype
        panels = -(-linear.out_features // PANEL)
        self._panels = zeroed(panels * PANEL * linear.in_features * self._dtype.itemsize)
        self._bias = None if linear.bias is None else linear.bias.detach().float().contiguous()
        self._matrix = Matrix(
            panels=self._panels.ctypes.data,
            bias=None if self._bias is None else self._bias.data_ptr(),
            outputs=linear.out_features,
            inputs=linear.in_features,
        )
        weight = linear.weight.detach().contiguous()
        shape = (linear.out_features, linear.in_features)
        self._functions.tm_pack(
            weight.data_ptr(), *shape, DTYPES[self._dtype], self._panels.ctypes.data, 0, 1
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """[..., inputs] to [..., outputs], summed in float32."""
        outputs = int(self._matrix.outputs)
        rows = states.reshape(-1, states.shape[-1]).contiguous()
        sums = torch.empty(len(rows), outputs)
        self._functions.tm_product(
            rows.data_ptr(),
            len(rows),
            DTYPES[self._dtype],
            ctypes.byref(self._matrix),
            sums.data_ptr(),
            num_threads(),
        )
        return sums.to(self._dtype).view(*states.shape[:-1], outputs)


@torch.inference_mode()
def is_faster(packed: PackedLinear, linear: nn.Linear) -> bool:
    """Whether the packed layer beats the plain one by a short timing."""
    ours = theirs = 0.0
    for count in _ROWS:
        rows = torch.ones(count, linear.in_features, dtype=linear.weight.dtype)
        ours += _seconds(packed, rows)
        theirs += _seconds(linear, rows)
    return ours < theirs


@torch.inference_mode()
def pack_linears(
    network: nn.Module,
    kernels: Kernels,
    faster: Callable[[PackedLinear, nn.Linear], bool],
) -> int:
    """Put packed layers in the place of plain ones that they agree with and are faster than.

    Args:
        network: it changes; a plain layer's weight is let go if nobody else has it.
        faster: whether a packed layer is worth it; asked once for each shape.

    Returns:
        How many layers were replaced.
    """
    verdicts: dict[tuple[int, int, bool], bool] = {}
    replaced = 0
    for parent, name, linear in list(_linears(network)):
        shape = (linear.out_features, linear.in_features, linear.bias is not None)
        if verdicts.get(shape, True):
            packed = PackedLinear(kernels, linear)
            if shape not in verdicts:
                verdicts[shape] = faster(packed, linear)
            if verdicts[shape] and _agrees(packed, linear):
                setattr(parent, name, packed)
                replaced += 1
    return replaced


def _linears(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear]]:
    """Plain linear layers that the kernels can take, each with the module that holds it."""
    for parent in network.modules():
        for name, child in parent.named_children():
            if (
                type(child) is nn.Linear
                and child.weight.dtype in DTYPES
                and child.weight.device.type == "cpu"
                and child.in_features % INPUT_MULTIPLE == 0
            ):
                yield parent, name, child


def _agrees(packed: PackedLinear, linear: nn.Linear) -> bool:
    """Whether both give the same for a few rows, so that a model is not judged by its rounding."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(_PROOF_ROWS, linear.in_features, generator=generator)
    ours, theirs = (layer(rows.to(linear.weight.dtype)).float() for layer in (packed, linear))
    limit = _TOLERANCE[linear.weight.dtype] * theirs.abs().max()
    return bool((ours - theirs).abs().max() <= limit)


def _seconds(layer: nn.Module, rows: torch.Tensor) -> float:
    """The shortest of a few calls; the first one only warms up."""
    layer(rows)
    spent = []
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        layer(rows)
        spent.append(time.perf_counter() - started)
    return min(spent)
