"""Which parts of a model are kept in fewer bits than the rest is computed in."""

from dataclasses import dataclass

from engine.errors import InvalidParams

PLAIN = "auto"
"""As `dtype` says."""
INT8 = "int8"
INT4 = "int4"
WEIGHTS = (PLAIN, INT8, INT4)
KV_CACHES = (PLAIN, INT8)


@dataclass(frozen=True, slots=True)
class Quantisation:
    """What is rounded further than to the engine's dtype; each is a choice of speed for quality.

    Attributes:
        weights: "auto" leaves the layers' weights as they are; "int8" has a scale per output and
            rounds the activations too, by a scale per token; "int4" has a step and a least value
            per output and 32 inputs, and computes in the dtype. Embedding and head stay.
        kv_cache: "auto" keeps keys and values as they are; "int8" has a scale per token and head.
    """

    weights: str = PLAIN
    kv_cache: str = PLAIN

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise InvalidParams(f"weights must be one of {', '.join(WEIGHTS)}.", "weights")
        if self.kv_cache not in KV_CACHES:
            raise InvalidParams(f"kv_cache must be one of {', '.join(KV_CACHES)}.", "kv_cache")
