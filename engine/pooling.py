"""One vector for a whole prompt: what a caller may ask, and the sum that grows chunk by chunk.

No torch: the device hands over one float32 vector per chunk, and what is kept fits in a line of
cache per dimension.
"""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidParams

Vector = npt.NDArray[np.float32]


class Pooling(StrEnum):
    """Which hidden states, after the model's final norm, make the vector."""

    LAST = "last"
    MEAN = "mean"


@dataclass(frozen=True, slots=True)
class PoolingParams:
    """How to turn the hidden states of a prompt into a vector of length 1.

    Attributes:
        pooling: the last token's state, or the mean of all.
        dimensions: keep this many leading ones; None keeps all. The vector is brought to length
            1 after the cut, as models trained for it (Matryoshka representation learning) expect.
    """

    pooling: Pooling = Pooling.LAST
    dimensions: int | None = None

    def validate(self, hidden_size: int | None) -> None:
        """Raise InvalidParams, naming the first bad field."""
        if hidden_size is None:
            raise InvalidParams(
                "This model doesn't show its hidden states, so it can't embed; use another model.",
                "model",
            )
        if self.dimensions is not None and not 1 <= self.dimensions <= hidden_size:
            raise InvalidParams(
                f"dimensions must be from 1 to the model's {hidden_size:,}.", "dimensions"
            )


class PooledStates:
    """The hidden states of one request, pooled as far as they are computed."""

    def __init__(self, params: PoolingParams) -> None:
        self.params = params
        self._num_tokens = 0
        self._vector: Vector | None = None

    @property
    def needs_every_token(self) -> bool:
        """Whether no token's states may be missing: a cached prefix has keys, not states."""
        return self.params.pooling is Pooling.MEAN

    def add(self, start: int, num_tokens: int, vector: Vector) -> None:
        """Take in the chunk of `num_tokens` tokens from position `start`.

        Args:
            vector: [hidden] float32, the sum of the chunk's states, or its last one.
        """
        if not self.needs_every_token:
            self._vector = vector
            return
        if start == 0:  # the first chunk, or all over again after a preemption
            self._num_tokens, self._vector = 0, np.zeros_like(vector)
        assert self._vector is not None
        assert start == self._num_tokens, "a chunk is missing from the mean"
        self._vector += vector
        self._num_tokens += num_tokens

    def result(self) -> Vector:
        """[dimensions] float32 of length 1; zeros where all states are zero."""
        assert self._vector is not None
        # The mean and the sum point the same way, so there is nothing to divide by.
        kept = self._vector[: self.params.dimensions].astype(np.float64)
        length = float(np.linalg.norm(kept))
        return (kept / length if length else kept).astype(np.float32)
