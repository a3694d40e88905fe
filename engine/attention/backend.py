"""What every attention backend offers; a backend owns the layout of its KV pool."""

from dataclasses import dataclass
from typing import Protocol

import torch


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The cache of one attention layer: heads and the sizes of their keys and values."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class AttentionOptions:
    """What one layer asks for.

    Attributes:
        scale: factor on the scores before the softmax.
        window: number of newest keys a query may see, itself included; None is all.
        softcap: scores become softcap * tanh(score / softcap); None is off.
        sinks: [query heads], a score that takes its share of each softmax and gives nothing
            (Xiao et al., Efficient Streaming Language Models with Attention Sinks, 2023); None
            is off.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """How sequences lie in a packed batch, one entry per sequence.

    Sequences with one query come first, by ascending length: a backend may slice them.

    Attributes:
        query_lens: tokens of the sequence in this step.
        context_lens: tokens of the sequence after this step, the queries included.
        block_tables: its blocks, enough for `context_lens` tokens.
    """

    query_lens: list[int]
    context_lens: list[int]
    block_tables: list[list[int]]


class AttentionBackend(Protocol):
    """Attention over a paged KV pool.

    A slot behind a sequence's `context_lens` may hold anything, NaN included: it must not be read,
    since a masked NaN still spoils a sum.
    """

    @property
    def name(self) -> str: ...

    def block_bytes(self) -> int:
        """Bytes that one block takes over all layers."""
        ...

    def allocate(self, num_blocks: int) -> None:
        """Create the pool, replacing an earlier one."""
        ...

    def begin(self, layout: BatchLayout) -> None:
        """Prepare one step; every `attend` until the next `begin` belongs to it."""
        ...

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """Store the step's keys and values, then attend causally.

        Args:
            layer: index of the attention layer.
            query: [tokens, query heads, key_dim]; strides are free.
            key: [tokens, kv heads, key_dim]; strides are free.
            value: [tokens, kv heads, value_dim]; strides are free.
            options: scale, window, softcap and sinks of the layer.

        Returns:
            [tokens, query heads, value_dim]
        """
        ...
