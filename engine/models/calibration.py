"""How far the activations of each layer reach, seen on a piece of ordinary text.

A few elements of a decoder's states are twenty times as large as the others. A scale for the whole
row leaves those few bits, so what is large is divided, and the weights that read it are multiplied:
SmoothQuant (Xiao et al., 2023) with its alpha of 0.5. The product stays the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import nn

from engine.models.llama import Parts
from engine.models.loaded import LoadedModel

TEXT = """\
The river had been rising since Tuesday. At 6:40 in the morning Mr. Okafor called the bridge office:
"We close it at noon, whatever the forecast says." Nobody argued; in 1987, 214 people had waited too
long. What follows is a summary of the report, in plain words.

1. Costs were $3,480.50 in March (12% more than planned), and 17.5 million in all.
2. The new pumps need 2 x 45 kW; see https://example.org/pumps?id=77 for the drawings.

def total(rows: list[dict]) -> float:
    # Rows without a price are counted as zero.
    return sum(row.get("price", 0.0) * row["count"] for row in rows if row)

{"question": "Which planet is the largest?", "answer": "Jupiter", "sure": true}
Dear team, thank you for your patience! Could you please send me the refund for order no. 5521? My
card was charged twice. Das Wetter ist heute schön, mais demain il va pleuvoir; mañana será otro.
"""
"""Prose, numbers, code, a form and other languages: what lines of a batch are made of."""
MOST_TOKENS = 256
SMALLEST = 1e-5
"""A reach below this is of an element that is always nearly nothing."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The largest absolute value of each element of what a layer's products read.

    Attributes:
        attention_input: [hidden], behind the first norm.
        mlp_input: [hidden], behind the second.
        gated: [intermediate], silu(gate) * up.
    """

    attention_input: torch.Tensor
    mlp_input: torch.Tensor
    gated: torch.Tensor


@torch.inference_mode()
def measure_reaches(model: LoadedModel, parts: Parts, token_ids: list[int]) -> list[Reach]:
    """Run the plain model over a text; `parts` are the model's own."""
    seen: dict[nn.Module, torch.Tensor] = {}
    linears = [(layer.query, layer.gate, layer.down) for layer in parts.layers]
    with _watching([linear for layer in linears for linear in layer], seen):
        model.plain_logits(token_ids[: min(MOST_TOKENS, model.max_model_len)])
    return [Reach(*(seen[linear] for linear in layer)) for layer in linears]


def smoothing(reach: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """[inputs] by which activations are divided and the columns of `weight` multiplied."""
    columns = weight.abs().amax(0)
    return (reach.clamp(min=SMALLEST) / columns.clamp(min=SMALLEST)).sqrt()


@contextmanager
def _watching(linears: list[nn.Linear], seen: dict[nn.Module, torch.Tensor]) -> Iterator[None]:
    """Note the reach of each linear layer's inputs, as long as the context lasts."""

    def note(linear: nn.Module) -> Callable[..., None]:
        def hook(_module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            seen[linear] = inputs[0].detach().float().abs().flatten(0, -2).amax(0)

        return hook

    hooks = [linear.register_forward_pre_hook(note(linear)) for linear in linears]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
