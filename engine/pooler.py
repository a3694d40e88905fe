"""The hidden states of a step's chunks as one float32 vector each."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.pooling import Pooling, Vector


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows `start` to `stop` of the packed batch, tokens of one request."""

    start: int
    stop: int
    pooling: Pooling


def pool_chunks(hidden: torch.Tensor, chunks: Sequence[Chunk]) -> list[Vector]:
    """What each chunk adds to its request's pooled states.

    Sums are taken in float32, whatever the model computes in, so that the chunks' borders do not
    show in the mean.

    Args:
        hidden: [tokens, hidden], after the final norm.

    Returns:
        [hidden] for each chunk: the sum of its states, or its last one.
    """
    vectors = [
        hidden[chunk.start : chunk.stop].sum(0, dtype=torch.float32)
        if chunk.pooling is Pooling.MEAN
        else hidden[chunk.stop - 1].float()
        for chunk in chunks
    ]
    return list(torch.stack(vectors).cpu().numpy()) if vectors else []
