"""Paged attention on the CPU, in C++ over a pool whose layout the kernel owns."""

import ctypes

import numpy as np
import torch

from engine.attention.backend import AttentionOptions, BatchLayout, LayerShape
from engine.attention.step_layout import padded_tables
from engine.kernels import Kernels
from engine.kernels.library import (
    BFLOAT16,
    FLOAT32,
    POOL_INT8,
    POOL_PLAIN,
    AttentionRows,
    AttentionShape,
    Batch,
)
from engine.kernels.memory import zeroed
from engine.kernels.threads import usable_threads
from engine.quantisation import INT8, PLAIN

DTYPES = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}


class CpuAttention:
    """The C++ backend; see AttentionBackend for the contract."""

    def __init__(
        self,
        kernels: Kernels,
        shapes: list[LayerShape],
        block_size: int,
        dtype: torch.dtype,
        kv_cache: str = PLAIN,
    ) -> None:
        told = "" if kv_cache == PLAIN else f", KV in {kv_cache}"
        self.name = f"C++ ({kernels.level.name}{told})"
        self._pool = POOL_INT8 if kv_cache == INT8 else POOL_PLAIN
        self._functions = kernels.functions
        self._shapes = shapes
        self._block_size = block_size
        self._dtype = dtype
        self._sinks: dict[int, torch.Tensor] = {}
        self._pools: list[np.ndarray] = []
        self._batch = Batch()
        self._held: tuple[np.ndarray, ...] = ()
        self._plan: int | None = None

    def block_bytes(self) -> int:
        return sum(self._layer_block_bytes(shape) for shape in self._shapes)

    def allocate(self, num_blocks: int) -> None:
        self._pools = [zeroed(num_blocks * self._layer_block_bytes(s)) for s in self._shapes]

    def begin(self, layout: BatchLayout) -> None:
        self._release()
        query_lens = np.array(layout.query_lens, dtype=np.int32)
        context_lens = np.array(layout.context_lens, dtype=np.int32)
        tables = padded_tables(layout.block_tables, -(-context_lens // self._block_size))
        # The plan reads these until it is freed.
        self._held = (tables, query_lens, context_lens)
        self._batch = Batch(
            len(tables),
            self._block_size,
            tables.shape[1],
            query_lens.ctypes.data,
            context_lens.ctypes.data,
            tables.ctypes.data,
        )
        self._plan = self._functions.tm_attention_plan(ctypes.byref(self._batch))
        if self._plan is None:
            raise MemoryError("no memory for the attention's plan")

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out = query.new_empty(query.shape[0], query.shape[1], value.shape[2])
        rows = AttentionRows(
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            out.data_ptr(),
            query.stride(0),
            key.stride(0),
            value.stride(0),
            out.stride(0),
        )
        self._functions.tm_attention(
            self.plan,
            ctypes.byref(self.layer_shape(layer, query.shape[1], options)),
            ctypes.byref(rows),
            self.pool_address(layer),
            num_threads(),
        )
        return out

    @property
    def plan(self) -> int:
        """Address of the step's TmAttentionPlan, for a caller in C++."""
        assert self._plan is not None, "begin comes before attend"
        return self._plan

    def pool_address(self, layer: int) -> int:
        """Address of a layer's pool, for a caller in C++."""
        return int(self._pools[layer].ctypes.data)

    def layer_shape(self, layer: int, num_heads: int, options: AttentionOptions) -> AttentionShape:
        """One layer as C++ wants it told."""
        shape = self._shapes[layer]
        return AttentionShape(
            DTYPES[self._dtype],
            num_heads,
            shape.num_kv_heads,
            shape.key_dim,
            shape.value_dim,
            options.window or 0,
            options.scale,
            options.softcap or 0.0,
            None if options.sinks is None else self._sinks_address(layer, options.sinks),
            self._pool,
        )

    def _sinks_address(self, layer: int, sinks: torch.Tensor) -> int:
        """Address of a layer's sinks in float32, which live as long as the backend."""
        if layer not in self._sinks:
            self._sinks[layer] = sinks.detach().float().contiguous()
        return self._sinks[layer].data_ptr()

    def _layer_block_bytes(self, shape: LayerShape) -> int:
        described = AttentionShape(
            DTYPES[self._dtype], shape.num_kv_heads, shape.num_kv_heads, shape.key_dim
        )
        described.value_dim = shape.value_dim
        described.pool = self._pool
        size = self._functions.tm_attention_block_bytes(ctypes.byref(described), self._block_size)
        return int(size)

    def _release(self) -> None:
        if self._plan is not None:
            self._functions.tm_attention_plan_free(self._plan)
            self._plan = None

    def __del__(self) -> None:
        self._release()


def num_threads() -> int:
    """Threads of a kernel: what torch was told, within what this process may use."""
    return min(torch.get_num_threads(), usable_threads())
