"""A weight in 8 or 4 bits, in the layout of the CPU kernels (kernels/cpu/tiles_int8.h, int4.h)."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from engine.kernels.memory import padded
from engine.quantisation import INT8

PANEL = 16
"""Outputs that lie together in a packed weight."""
TILE_INPUTS = 64
"""Inputs of int8 come in whole tiles."""
GROUP = 32
"""Inputs that share a step and a least value in 4 bits."""
LARGEST_INT8 = 127
LARGEST_INT4 = 15


@dataclass(frozen=True, slots=True)
class PackedPanels:
    """A linear layer by its panels: a row of each tensor for every 16 outputs.

    Attributes:
        data: [panels, bytes].
        scales: [panels, 16], float32, of each output; empty with int4.
        offsets: [panels, 16], int32, -128 times the sum of each output's weights; empty with int4.
    """

    data: torch.Tensor
    scales: torch.Tensor
    offsets: torch.Tensor


def packed_bytes(panels: int, inputs: int, weights: str) -> int:
    """Bytes of that many panels with all that belongs to them, each part on cache lines."""
    if weights == INT8:
        data = panels * PANEL * -(-inputs // TILE_INPUTS) * TILE_INPUTS
        return padded(data) + 2 * padded(panels * PANEL * 4)
    group_bytes = 2 * PANEL * 2 + GROUP * PANEL // 2
    return padded(panels * inputs // GROUP * group_bytes)


def pack_int8(weight: torch.Tensor) -> PackedPanels:
    """Each output by a scale of its own, its largest weight over 127.

    Args:
        weight: [outputs, inputs], of any floating dtype.
    """
    codes, scales = round_to_int8(weight)
    codes = F.pad(codes, (0, -codes.shape[1] % TILE_INPUTS, 0, -len(codes) % PANEL))
    scales = F.pad(scales, (0, -len(scales) % PANEL))
    # A line is 4 inputs of 16 outputs.
    lines = codes.view(-1, PANEL, codes.shape[1] // 4, 4).transpose(1, 2)
    offsets = -128 * codes.sum(1, dtype=torch.int32)
    return PackedPanels(
        lines.reshape(len(lines), -1).view(torch.uint8),
        scales.view(-1, PANEL),
        offsets.view(-1, PANEL),
    )


def round_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 [outputs, inputs], and float32 [outputs] by which they are to be multiplied."""
    weight = weight.detach().float()
    scales = weight.abs().amax(1) / LARGEST_INT8
    codes = weight / scales.clamp(min=torch.finfo(torch.float32).tiny)[:, None]
    return codes.round_().to(torch.int8), scales


def pack_int4(weight: torch.Tensor) -> PackedPanels:
    """Each output and 32 inputs by a step and a least value of their own.

    Args:
        weight: [outputs, inputs] of any floating dtype, inputs a multiple of 32.
    """
    codes, steps, least = round_to_int4(F.pad(weight.detach(), (0, 0, 0, -len(weight) % PANEL)))
    groups = steps.shape[1]
    by_panel = (-1, PANEL, groups)
    # A word is 8 inputs of an output, the first in the lowest bits; a line has one for each output.
    eights = codes.view(-1, PANEL, groups, GROUP // 8, 8).to(torch.int32)
    words = (eights << torch.arange(0, 32, 4, dtype=torch.int32)).sum(-1, dtype=torch.int32)
    parts = [
        steps.view(by_panel).transpose(1, 2),
        least.view(by_panel).transpose(1, 2),
        words.permute(0, 2, 3, 1).flatten(2),
    ]
    data = torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=2)
    nothing = torch.empty(0)
    return PackedPanels(data.flatten(1), nothing, nothing)


def round_to_int4(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes from 0 to 15 [outputs, inputs]; steps and least values [outputs, inputs / 32].

    Steps and least values are bfloat16; a weight is its code times the step plus the least.
    """
    grouped = weight.float().view(len(weight), -1, GROUP)
    least = grouped.amin(2).to(torch.bfloat16)
    reach = grouped.amax(2) - least.float()
    steps = (reach / LARGEST_INT4).to(torch.bfloat16)
    divisors = steps.float().clamp(min=torch.finfo(torch.float32).tiny)
    codes = (grouped - least.float()[:, :, None]) / divisors[:, :, None]
    codes = codes.round_().clamp_(0, LARGEST_INT4).to(torch.uint8)
    return codes.flatten(1), steps, least
