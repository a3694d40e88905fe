"""By which angles a position turns its queries and keys (RoPE, Su et al., 2021)."""

import torch


class Rotations:
    """Cosines and sines by position, computed once: a position's never change (has_positions_by_
    length keeps out the models where they would)."""

    def __init__(self, frequencies: torch.Tensor, factor: float) -> None:
        """As transformers' rotary modules have them.

        Args:
            frequencies: [rotary_dim / 2] radians that a pair turns from a position to the next.
            factor: of all cosines and sines; YaRN (Peng et al., 2023) has one.
        """
        self.frequencies, self.factor = frequencies, factor
        self._cosine = self._sine = torch.empty(0, len(frequencies))

    def of(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """[tokens, rotary_dim / 2] cosines and sines of [tokens] positions, in float32."""
        longest = int(positions.max()) + 1
        if longest > len(self._cosine):
            # Doubled, so that a growing context seldom comes here.
            self._cosine, self._sine = self.compute(torch.arange(2 * longest))
        return self._cosine[positions], self._sine[positions]

    def compute(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `of`, without a table."""
        angles = positions.float()[:, None] * self.frequencies
        return angles.cos() * self.factor, angles.sin() * self.factor
