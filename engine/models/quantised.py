"""The packed layers of a fused model, rounded to 8 or 4 bits where they lie.

It works on the panels and not on the modules, so that the plain layers can be proved first, and the
model needs no more memory at any time than it took to load.
"""

import ctypes

import torch

from engine.kernels.library import FORMAT_BF16, FORMAT_INT4, FORMAT_INT8, Layer, Matrix, Stack
from engine.kernels.memory import Arena
from engine.models.calibration import Reach, smoothing
from engine.models.low_bits import PANEL, pack_int4, pack_int8, packed_bytes
from engine.quantisation import INT8

_MATRICES = ("qkv", "out", "gate_up", "down")


class QuantisedLayers:
    """The rounded weights of a stack, which point here from now on; they live as long as this."""

    def __init__(
        self, stack: Stack, source: Arena, dtype: torch.dtype, weights: str, reaches: list[Reach]
    ) -> None:
        """Round the layers of `stack`.

        Args:
            source: where their plain panels of `dtype` lie, which are given back one by one.
            weights: "int8" or "int4".
            reaches: of each layer, to move outliers of activations into the weights; with "int4",
                which leaves activations as they are, there may be none.
        """
        self._source, self._dtype = source, dtype
        self._weights = weights
        layers = [stack.layers[index] for index in range(stack.num_layers)]
        matrices = [getattr(layer, name) for layer in layers for name in _MATRICES]
        self._arena = Arena(sum(self._bytes(matrix) for matrix in matrices))
        for index, layer in enumerate(layers):
            self._take_layer(layer, reaches[index] if reaches else None)

    def _take_layer(self, layer: Layer, reach: Reach | None) -> None:
        qkv, out = self._plain(layer.qkv), self._plain(layer.out)
        gate_up, down = self._plain(layer.gate_up), self._plain(layer.down)
        if reach is not None:
            _smooth_norm(layer.input_norm, qkv, reach.attention_input)
            _smooth_norm(layer.mlp_norm, gate_up, reach.mlp_input)
            _smooth_gated(layer.gate_up, gate_up, down, reach.gated)
        for name, weight in zip(_MATRICES, (qkv, out, gate_up, down), strict=True):
            self._put(getattr(layer, name), weight)

    def _plain(self, matrix: Matrix) -> torch.Tensor:
        """[outputs up to the last panel's end, inputs] in float32."""
        dtype = self._panel_dtype(matrix)
        panels, pairs = -(-matrix.outputs // PANEL), 4 // dtype.itemsize
        held = torch.frombuffer(_memory(matrix.panels, self._plain_bytes(matrix)), dtype=dtype)
        lines = held.view(panels, matrix.inputs // pairs, PANEL, pairs)
        return lines.transpose(1, 2).reshape(panels * PANEL, matrix.inputs).float()

    def _put(self, matrix: Matrix, weight: torch.Tensor) -> None:
        self._source.give_back(matrix.panels, self._plain_bytes(matrix))
        packed = pack_int8(weight) if self._weights == INT8 else pack_int4(weight)
        matrix.panels = self._copy(packed.data)
        matrix.scales, matrix.offsets = self._copy(packed.scales), self._copy(packed.offsets)
        matrix.format = FORMAT_INT8 if self._weights == INT8 else FORMAT_INT4

    def _copy(self, values: torch.Tensor) -> int:
        values = values.contiguous()
        address = self._arena.take(values.nbytes)
        ctypes.memmove(address, values.data_ptr(), values.nbytes)
        return address

    def _plain_bytes(self, matrix: Matrix) -> int:
        panels = -(-int(matrix.outputs) // PANEL)
        return panels * PANEL * int(matrix.inputs) * self._panel_dtype(matrix).itemsize

    def _panel_dtype(self, matrix: Matrix) -> torch.dtype:
        return torch.bfloat16 if matrix.format == FORMAT_BF16 else self._dtype

    def _bytes(self, matrix: Matrix) -> int:
        return packed_bytes(-(-matrix.outputs // PANEL), matrix.inputs, self._weights)


def _smooth_norm(norm: int, weight: torch.Tensor, reach: torch.Tensor) -> None:
    """Divide what a norm gives, and multiply the weights that read it."""
    factors = smoothing(reach, weight)
    _vector(norm, len(factors)).div_(factors)
    weight.mul_(factors)


def _smooth_gated(
    matrix: Matrix, gate_up: torch.Tensor, down: torch.Tensor, reach: torch.Tensor
) -> None:
    """The same for silu(gate) * up: the ups are divided."""
    factors = smoothing(reach, down)
    by_panel = factors.view(-1, PANEL)
    # Panels of gate and up lie in turn.
    gate_up.view(len(by_panel), 2, PANEL, -1)[:, 1].div_(by_panel[:, :, None])
    if matrix.bias is not None:
        _vector(matrix.bias, matrix.outputs).view(len(by_panel), 2, PANEL)[:, 1].div_(by_panel)
    down.mul_(factors)


def _vector(address: int, length: int) -> torch.Tensor:
    """[length] floats that lie there, to be changed."""
    return torch.frombuffer(_memory(address, 4 * length), dtype=torch.float32)


def _memory(address: int, size: int) -> "ctypes.Array[ctypes.c_uint8]":
    return (ctypes.c_uint8 * size).from_address(address)
