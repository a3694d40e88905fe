"""A model of Llama's shape whose whole step, embedding to logits, is one call into C++."""

import ctypes

import numpy as np
import torch

from engine.attention import AttentionBackend
from engine.attention.cpu import CpuAttention, num_threads
from engine.errors import NotPaged
from engine.kernels import Kernels
from engine.kernels.library import Profile, Step
from engine.kernels.memory import zeroed
from engine.models.calibration import Reach
from engine.models.likeliest import Likeliest, Wanted
from engine.models.packing import PackedModel
from engine.models.quantised import QuantisedLayers
from engine.tracing import stretch


class FusedModel:
    """The same interface as LoadedModel, over packed weights; it needs a CpuAttention.

    Attributes:
        shapes, options, vocab_size, hidden_size, max_model_len, device, dtype, name: as there.
        packed: what it computes from.
    """

    def __init__(self, packed: PackedModel, kernels: Kernels) -> None:
        self.packed = packed
        self.shapes, self.options = packed.shapes, packed.options
        self.vocab_size, self.hidden_size = packed.vocab_size, packed.hidden_size
        self.max_model_len = packed.max_model_len
        self.device, self.dtype = torch.device("cpu"), packed.dtype
        self.name = f"{packed.name} (fused layers)"
        self._stack = packed.stack
        self._functions = kernels.functions
        self._profile = Profile()
        self._quantised: QuantisedLayers | None = None
        self._workspace = zeroed(0)
        self._logits = torch.empty(0, self.vocab_size)

    def quantise(self, weights: str, reaches: list[Reach]) -> None:
        """Round the layers' weights to "int8" or "int4" from now on; QuantisedLayers says how."""
        self._quantised = QuantisedLayers(
            self._stack, self.packed.arena, self.dtype, weights, reaches
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
        cosine, sine = self.packed.rotations.of(positions)
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
                index, self.packed.num_heads, options
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
