"""Transformers' caches as rows: join them into one batch, take rows out, weigh them.

A batch is padded on the left, so that all rows end in the same slot and grow together. Only kinds
of layers whose inside is known are joined; whoever batches others would guess.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionLayer,
)

JOINED_LAYERS = (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer,
)


@dataclass(frozen=True, slots=True)
class CacheRows:
    """Some rows of a cache."""

    cache: Cache
    rows: list[int]


def can_join(cache: object) -> bool:
    """Whether `gather_rows` knows every layer of the cache."""
    layers = getattr(cache, "layers", None)
    return isinstance(cache, Cache) and all(type(layer) in JOINED_LAYERS for layer in layers or [])


def gather_rows(parts: Sequence[CacheRows], length: int) -> Cache:
    """A new cache of the given rows, one part after the other.

    Args:
        parts: caches for which `can_join` holds, of one model.
        length: cached tokens of the longest of the rows; shorter rows are padded to it.
    """
    joined = copy.copy(parts[0].cache)
    joined.layers = [
        _gather_layer([(part.cache.layers[index], part.rows) for part in parts], length)
        for index in range(len(joined.layers))
    ]
    return joined


def cache_bytes(state: object) -> int:
    """Bytes of all tensors in a cache of whatever kind."""
    return sum(tensor.nbytes for tensor in {id(t): t for t in _tensors(state)}.values())


_LayerRows = list[tuple[Any, list[int]]]


def _gather_layer(parts: _LayerRows, length: int) -> object:
    layer = copy.copy(parts[0][0])
    if isinstance(layer, DynamicLayer) and layer.is_initialized and layer.keys is not None:
        if isinstance(layer, DynamicSlidingWindowLayer):
            layer.cumulative_length = length
            # The newest token sees itself beside what is kept.
            length = min(length, layer.sliding_window - 1)
        layer.keys = torch.cat([_fit(part.keys[rows], length) for part, rows in parts])
        layer.values = torch.cat([_fit(part.values[rows], length) for part, rows in parts])
    if isinstance(layer, LinearAttentionLayer):
        for name in ("conv_states", "recurrent_states"):
            states = [(getattr(part, name), rows) for part, rows in parts]
            setattr(layer, name, _gather_states(states))
        # The layer marks in these what it has seen; the copy must not share them.
        layer.has_previous_state = dict(layer.has_previous_state)
    return layer


def _gather_states(
    parts: list[tuple[dict[int, torch.Tensor | None], list[int]]],
) -> dict[int, torch.Tensor | None]:
    """States have no length: rows only lie one after the other."""
    gathered: dict[int, torch.Tensor | None] = {}
    for key in parts[0][0]:
        states = [(state[key], rows) for state, rows in parts]
        known = [state[rows] for state, rows in states if state is not None]
        gathered[key] = torch.cat(known) if known else None
    return gathered


def _fit(keys: torch.Tensor, length: int) -> torch.Tensor:
    """[rows, heads, keys, dim] cut or padded on the left to `length` keys."""
    missing = length - keys.shape[-2]
    if missing <= 0:
        return keys[..., -length:, :]
    padding = keys.new_zeros(*keys.shape[:-2], missing, keys.shape[-1])
    return torch.cat([padding, keys], dim=-2)


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
    elif type(value).__module__.startswith("transformers.") and hasattr(value, "__dict__"):
        for name, part in vars(value).items():
            if "config" not in name:
                yield from _tensors(part)
