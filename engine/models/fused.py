"""A model of Llama's shape whose whole step, embedding to logits, is one call into C++."""

import ctypes

import numpy as np
import torch
from torch import nn

from engine.attention import AttentionBackend
from engine.attention.cpu import DTYPES, CpuAttention, num_threads
from engine.errors import NotPaged
from engine.kernels import Kernels, KernelsUnavailable, load_kernels
from engine.kernels.library import Layer, Matrix, Profile, Stack, Step
from engine.kernels.memory import Arena, padded, zeroed
from engine.models.calibration import Reach
from engine.models.hf import LoadedModel
from engine.models.likeliest import Likeliest, Wanted
from engine.models.llama import LayerParts, NotFusable, Parts, Rotations, take_apart
from engine.models.low_bits import PANEL
from engine.models.quantised import QuantisedLayers
from engine.tracing import stretch


class FusedModel:
    """The same interface as LoadedModel, over packed weights; it needs a CpuAttention.

    Attributes:
        shapes, options, vocab_size, hidden_size, max_model_len, device, dtype, name: as there.
    """

    def __init__(self, model: LoadedModel) -> None:
        """Take the weights out of `model`, which can't run after that.

        Raises:
            NotFusable: the model is not of this shape, or there are no kernels; it is whole.
        """
        if model.device.type != "cpu" or model.dtype not in DTYPES:
            raise NotFusable(f"the kernels don't know {model.dtype} on {model.device}")
        try:
            kernels = load_kernels()
        except KernelsUnavailable as error:
            raise NotFusable(str(error)) from None
        parts = take_apart(model)
        self.shapes, self.options = model.shapes, model.options
        self.vocab_size = model.vocab_size
        self.max_model_len = model.max_model_len
        self.device, self.dtype = model.device, model.dtype
        self.name = f"{model.name} (fused layers)"
        self._profile = Profile()
        self.hidden_size = parts.embedding.embedding_dim
        self._functions = kernels.functions
        self._rotations = Rotations(parts)
        self._num_heads = parts.layers[0].query.out_features // model.shapes[0].key_dim
        self._weights = _PackedWeights(kernels, parts, model.dtype)
        self._stack = self._weights.stack
        self._quantised: QuantisedLayers | None = None
        self._workspace = zeroed(0)
        self._logits = torch.empty(0, self.vocab_size)

    def quantise(self, weights: str, reaches: list[Reach]) -> None:
        """Round the layers' weights to "int8" or "int4" from now on; QuantisedLayers says how."""
        self._quantised = QuantisedLayers(
            self._stack, self._weights.arena, self.dtype, weights, reaches
        )
        self.name = f"{self.name.removesuffix(')')}, weights in {weights})"

    def logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
    ) -> torch.Tensor:
        """LoadedModel.logits, in float32; they are overwritten by the next step's."""
        step = self._step(token_ids, positions, rows, attention)
        return self._run(step, len(rows))

    def hidden_and_logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, hidden] behind the last norm and [rows, vocab] as from `logits`, in float32."""
        hidden = torch.empty(len(token_ids), self.hidden_size)
        step = self._step(token_ids, positions, rows, attention)
        step.hidden = hidden.data_ptr()
        return hidden, self._run(step, len(rows))

    def likeliest_and_logits(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
        wanted: Wanted,
    ) -> tuple[Likeliest, torch.Tensor]:
        """As `logits` for the first rows alone, with the likeliest token of each row."""
        token_of_row = np.empty(len(rows), dtype=np.int64)
        finite = np.empty(len(rows), dtype=np.bool_)
        step = self._step(token_ids, positions, rows, attention)
        step.num_ids = wanted.num_ids
        step.best, step.finite = token_of_row.ctypes.data, finite.ctypes.data
        logits = self._run(step, wanted.num_logits)
        return Likeliest(token_of_row.tolist(), finite.tolist()), logits

    def seconds(self) -> dict[str, float]:
        """Seconds of all steps so far by part of the forward."""
        return {
            "matrix products": self._profile.products,
            "attention": self._profile.attention,
            "norms and embedding": self._profile.small,
            "head": self._profile.head,
        }

    def _step(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        rows: torch.Tensor,
        attention: AttentionBackend,
    ) -> Step:
        """What all kinds of steps have in common; it keeps alive what it points to."""
        if not isinstance(attention, CpuAttention):
            raise NotPaged(f"{self.name} needs attention in C++, not {attention.name}")
        pools = self._bind(attention)
        cosine, sine = self._rotations.of(positions)
        token_ids, rows = token_ids.contiguous(), rows.contiguous()
        step = Step(
            plan=attention.plan,
            num_tokens=len(token_ids),
            token_ids=token_ids.data_ptr(),
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            pools=ctypes.addressof(pools),
            num_rows=len(rows),
            rows=rows.data_ptr(),
            workspace=self._reserve(len(token_ids), len(rows)),
            profile=ctypes.pointer(self._profile),
            num_threads=num_threads(),
        )
        step.held = (pools, cosine, sine, token_ids, rows)
        return step

    def _run(self, step: Step, num_logits: int) -> torch.Tensor:
        """Run the step; returns the logits of its first rows."""
        logits = self._logits_buffer(num_logits)
        step.num_logits, step.logits = num_logits, logits.data_ptr()
        with stretch("fused layers"):
            self._functions.tm_run_step(ctypes.byref(self._stack), ctypes.byref(step))
        return logits

    def _bind(self, attention: CpuAttention) -> "ctypes.Array[ctypes.c_void_p]":
        """Tell each layer its attention; returns the addresses of the pools."""
        for index, options in enumerate(self.options):
            self._stack.layers[index].attention = attention.layer_shape(
                index, self._num_heads, options
            )
        addresses = [attention.pool_address(index) for index in range(len(self.options))]
        return (ctypes.c_void_p * len(addresses))(*addresses)

    def _logits_buffer(self, num_rows: int) -> torch.Tensor:
        """[rows, vocab], the same memory in each step: pages made anew cost more than the head."""
        if len(self._logits) < num_rows:
            memory = zeroed(num_rows * self.vocab_size * 4)
            self._logits = torch.from_numpy(memory.view(np.float32)).view(num_rows, -1)
        return self._logits[:num_rows]

    def _reserve(self, num_tokens: int, num_rows: int) -> int:
        """Address of a workspace that is large enough for the step."""
        size = self._functions.tm_workspace_bytes(
            ctypes.byref(self._stack), num_tokens, num_rows, num_threads()
        )
        if len(self._workspace) < size:
            self._workspace = zeroed(size)
        return int(self._workspace.ctypes.data)


class _PackedWeights:
    """The weights in the kernels' layout; each original is let go as soon as it is packed."""

    def __init__(self, kernels: Kernels, parts: Parts, dtype: torch.dtype) -> None:
        self._functions = kernels.functions
        self._dtype = dtype
        self.arena = Arena(self._arena_bytes(parts))
        # The head first: its weight may be the embedding's, which stays.
        head = self._matrix([parts.head], 1)
        self._embedding = parts.embedding.weight.detach().contiguous()
        layers = (Layer * len(parts.layers))(*[self._layer(layer) for layer in parts.layers])
        self.stack = Stack(
            dtype=DTYPES[dtype],
            num_layers=len(parts.layers),
            hidden=parts.embedding.embedding_dim,
            intermediate=parts.layers[0].down.in_features,
            epsilon=parts.epsilon,
            rotary_dim=parts.rotary_dim,
            layers=layers,
            embedding=self._embedding.data_ptr(),
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
        address = self.arena.take(sum(panels) * PANEL * inputs * self._dtype.itemsize)
        for index, linear in enumerate(linears):
            first = sum(panels[:index]) if step == 1 else index
            weight = linear.weight.detach().contiguous()
            self._functions.tm_pack(
                weight.data_ptr(),
                linear.out_features,
                inputs,
                DTYPES[self._dtype],
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
        )
        for linear in linears:
            linear.weight = nn.Parameter(torch.empty(0), requires_grad=False)
        return matrix

    def _vector(self, values: torch.Tensor) -> int:
        """Address of a copy in float32."""
        values = values.detach().float().contiguous()
        address = self.arena.take(values.numel() * 4)
        ctypes.memmove(address, values.data_ptr(), values.numel() * 4)
        return address

    def _arena_bytes(self, parts: Parts) -> int:
        layers = parts.layers
        linears = [parts.head, *(linear for layer in layers for linear in layer.linears)]
        norms = [parts.final_norm, *(norm for layer in layers for norm in layer.norms)]
        size = 0
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
