"""What a model's configuration says about positions: how many, and whether length changes them."""

from collections.abc import Iterator, Mapping
from typing import Any

LENGTH_NAMES = ("max_position_embeddings", "max_seq_len", "seq_length", "context_length")
GROWING_KINDS = ("dynamic", "longrope")


def trained_length(model_config: object) -> int | None:
    """Positions the model was trained for, in the words of any family; None if it doesn't tell."""
    found = (getattr(model_config, name, None) for name in LENGTH_NAMES)
    return next((length for length in found if isinstance(length, int) and length > 0), None)


def has_positions_by_length(model_config: object, max_model_len: int) -> bool:
    """Whether a sequence's length, once it passes the original one, turns all of its positions.

    Then neither the keys of its past nor a batch of several lengths can share one rotation
    (LongRoPE, Ding et al., 2024; dynamic NTK scaling).
    """
    for rope in _ropes(getattr(model_config, "rope_parameters", None)):
        if rope.get("rope_type") in GROWING_KINDS:
            named = rope.get("original_max_position_embeddings")
            original = named or getattr(model_config, "original_max_position_embeddings", None)
            if max_model_len > (original or trained_length(model_config) or 0):
                return True
    return False


def _ropes(parameters: object) -> Iterator[Mapping[str, Any]]:
    """The rotation of all layers, or that of each kind of layer."""
    if isinstance(parameters, Mapping):
        if "rope_type" in parameters:
            yield parameters
        else:
            yield from (part for part in parameters.values() if isinstance(part, Mapping))
