"""Model loading: what was kept packed, or transformers' own in the lane that it proves in."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.config import EngineConfig
from engine.models.fused import FusedModel
from engine.models.kept import load_kept
from engine.models.likeliest import Wanted
from engine.models.loaded import LoadedModel

if TYPE_CHECKING:
    from engine.models.padded import PaddedModel

__all__ = ["FusedModel", "LoadedModel", "Wanted", "load_model"]


def load_model(
    config: EngineConfig, text: Sequence[int] = ()
) -> "LoadedModel | FusedModel | PaddedModel":
    """Load the model folder and prove that it computes what the plain model does.

    With our attention where that can be done, else with transformers' own (the padded lane).

    Args:
        text: token ids on which activations are measured; needed for weights in int8 only.

    Raises:
        UnsupportedModel: the folder is refused, fails to load, or neither lane can be trusted.
        InvalidParams: `max_model_len` is more than the model was trained for, or its weights can't
            be quantised.
    """
    kept = load_kept(config)
    if kept is not None:
        return kept
    # To import transformers takes seconds, which a kept model saves.
    from engine.models.loading import load_and_prove  # noqa: PLC0415

    return load_and_prove(config, text)
