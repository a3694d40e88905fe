"""Model loading: transformers' own code with our attention, trusted only after a probe."""

import logging

from engine.config import EngineConfig
from engine.errors import EngineError, UnsupportedModel
from engine.models.fused import FusedModel
from engine.models.hf import LoadedModel, load_from_folder
from engine.models.llama import NotFusable
from engine.models.probe import plain_answers, probe_model

__all__ = ["FusedModel", "LoadedModel", "load_model"]

logger = logging.getLogger(__name__)


def load_model(config: EngineConfig) -> LoadedModel | FusedModel:
    """Load the model folder and prove that it computes what the plain model does.

    Raises:
        UnsupportedModel: the folder is refused, fails to load, or the probe disagrees.
        InvalidParams: `max_model_len` is more than the model was trained for.
    """
    try:
        return _load_probed(config)
    except EngineError:
        raise
    # Foreign code runs on a foreign folder: whatever it raises, this model can't be served.
    except Exception as error:
        raise UnsupportedModel(
            f"transformers can't load or run the model in {config.model}: {error}"
        ) from error


def _load_probed(config: EngineConfig) -> LoadedModel | FusedModel:
    """With fused layers if the model has their shape and they prove right, else without."""
    model = load_from_folder(config)
    answers = plain_answers(model, config.block_size)
    try:
        fused = FusedModel(model)
    except NotFusable as reason:
        logger.info("%s runs without fused layers: %s.", model.name, reason)
    else:
        try:
            probe_model(fused, config.block_size, answers)
        except UnsupportedModel as error:
            logger.warning("%s runs without fused layers: %s", model.name, error.message)
            # Its weights went into the fused layers.
            model = load_from_folder(config)
        else:
            return fused
    probe_model(model, config.block_size, answers)
    return model
