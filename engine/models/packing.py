"""The weights of a model of Llama's shape, packed into the kernels' layout."""

import ctypes
from dataclasses import dataclass

import torch
from torch import nn

from engine.attention.backend import AttentionOptions, LayerShape
from engine.attention.cpu import DTYPES
from engine.kernels import Kernels
from engine.kernels.library import FORMAT_BF16, FORMAT_PLAIN, Layer, Matrix, Stack
from engine.kernels.memory import Arena, padded
from engine.models.llama import LayerParts, Parts, take_apart
from engine.models.loaded import LoadedModel
from engine.models.low_bits import PANEL
from engine.models.rotations import Rotations


@dataclass(frozen=True, slots=True)
class PackedModel:
    """All that the fused layers compute from.

    Attributes:
        name: class of the model, for people.
        shapes, options: of each attention layer.
        vocab_size, hidden_size, max_model_len, dtype: as of a LoadedModel.
        num_heads: of queries.
        rotations: cosines and sines by position.
        stack: the weights by their addresses, all of them within `arena`.
        arena: the memory that they lie in.
    """

    name: str
    shapes: list[LayerShape]
    options: list[AttentionOptions]
    vocab_size: int
    hidden_size: int
    max_model_len: int
    dtype: torch.dtype
    num_heads: int
    rotations: Rotations
    stack: Stack
    arena: Arena


def pack_model(model: LoadedModel, kernels: Kernels) -> PackedModel:
    """Take the weights out of `model`, on the CPU, which can't run after that.

    Raises:
        NotFusable: the model is not of this shape; it is whole.
    """
    parts = take_apart(model)
    packing = _Packing(kernels, parts, model.dtype)
    return PackedModel(
        name=model.name,
        shapes=model.shapes,
        options=model.options,
        vocab_size=model.vocab_size,
        hidden_size=parts.embedding.embedding_dim,
        max_model_len=model.max_model_len,
        dtype=model.dtype,
        num_heads=parts.layers[0].query.out_features // model.shapes[0].key_dim,
        rotations=parts.rotations,
        stack=packing.stack,
        arena=packing.arena,
    )


class _Packing:
    """The weights on their way into the kernels' layout; each original is let go once packed."""

    def __init__(self, kernels: Kernels, parts: Parts, dtype: torch.dtype) -> None:
        self._functions = kernels.functions
        self._dtype = dtype
        self.arena = Arena(self._arena_bytes(parts))
        embedding = self._copy(parts.embedding.weight.detach().contiguous())
        # Its weight may be the embedding's.
        head = self._matrix([parts.head], 1)
        parts.embedding.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        layers = (Layer * len(parts.layers))(*[self._layer(layer) for layer in parts.layers])
        self.stack = Stack(
            dtype=DTYPES[dtype],
            num_layers=len(parts.layers),
            hidden=parts.embedding.embedding_dim,
            intermediate=parts.layers[0].down.in_features,
            epsilon=parts.epsilon,
            rotary_dim=2 * len(parts.rotations.frequencies),
            layers=layers,
            embedding=embedding,
            final_norm=self._vector(parts.final_norm.get_parameter("weight")),
            head=head,
        )

    def _layer(self, parts: LayerParts) -> Layer:
        layer = Layer(
            input_norm=self._vector(parts.input_norm.get_parameter("weight")),
            mlp_norm=self._vector(parts.mlp_norm.get_parameter("weight")),
            qkv=self._matrix([parts.query, parts.key, parts.value], 1),
            out=self._matrix([parts.out], 1),
            gate_up=self._matrix([parts.gate, parts.up], 2),
            down=self._matrix([parts.down], 1),
        )
        if parts.query_norm is not None and parts.key_norm is not None:
            layer.query_norm = self._vector(parts.query_norm.get_parameter("weight"))
            layer.key_norm = self._vector(parts.key_norm.get_parameter("weight"))
        return layer

    def _matrix(self, linears: list[nn.Linear], step: int) -> Matrix:
        """Linear layers of the same inputs as one: one behind the other, or by panels in turn."""
        inputs = linears[0].in_features
        panels = [-(-linear.out_features // PANEL) for linear in linears]
        dtype = self._panel_dtype(linears)
        address = self.arena.take(sum(panels) * PANEL * inputs * dtype.itemsize)
        for index, linear in enumerate(linears):
            first = sum(panels[:index]) if step == 1 else index
            weight = linear.weight.detach().to(dtype).contiguous()
            self._functions.tm_pack(
                weight.data_ptr(),
                linear.out_features,
                inputs,
                DTYPES[dtype],
                address,
                first,
                step,
            )
        bias = _joined_bias(linears, step)
        matrix = Matrix(
            panels=address,
            bias=None if bias is None else self._vector(bias),
            outputs=sum(linear.out_features for linear in linears),
            inputs=inputs,
            format=FORMAT_PLAIN if dtype is self._dtype else FORMAT_BF16,
        )
        for linear in linears:
            linear.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        return matrix

    def _panel_dtype(self, linears: list[nn.Linear]) -> torch.dtype:
        """bfloat16 where nothing is lost by it: half the bytes to read, and the same sums."""
        weights = [linear.weight for linear in linears]
        if all(torch.equal(weight.bfloat16().float(), weight.float()) for weight in weights):
            return torch.bfloat16
        return self._dtype

    def _vector(self, values: torch.Tensor) -> int:
        """Address of a copy in float32."""
        return self._copy(values.detach().float().contiguous())

    def _copy(self, values: torch.Tensor) -> int:
        """Address of a copy of contiguous values."""
        address = self.arena.take(values.nbytes)
        ctypes.memmove(address, values.data_ptr(), values.nbytes)
        return address

    def _arena_bytes(self, parts: Parts) -> int:
        layers = parts.layers
        linears = [parts.head, *(linear for layer in layers for linear in layer.linears)]
        norms = [parts.final_norm, *(norm for layer in layers for norm in layer.norms)]
        size = padded(parts.embedding.weight.nbytes)
        for linear in linears:
            panels = -(-linear.out_features // PANEL)
            size += padded(panels * PANEL * linear.in_features * self._dtype.itemsize)
            size += padded(linear.out_features * 4)
        return size + sum(padded(norm.get_parameter("weight").numel() * 4) for norm in norms)


def _joined_bias(linears: list[nn.Linear], step: int) -> torch.Tensor | None:
    """[outputs] in the order of the joined layer; zeros where one of them has none."""
    if all(linear.bias is None for linear in linears):
        return None
    parts = [
        torch.zeros(linear.out_features) if linear.bias is None else linear.bias.detach().float()
        for linear in linears
    ]
    if step == 1:
        return torch.cat(parts)
    return torch.stack([part.view(-1, PANEL) for part in parts], dim=1).flatten()
