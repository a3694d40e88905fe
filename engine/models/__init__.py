"""Model loading: transformers' own code with our attention, trusted only after a probe."""

from engine.config import EngineConfig
from engine.models.hf import LoadedModel, load_from_folder
from engine.models.probe import probe_model

__all__ = ["LoadedModel", "load_model"]


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the model folder and prove that it computes what the plain model does.

    Raises:
        UnsupportedModel: the folder is refused, or the probe disagrees.
    """
    model = load_from_folder(config)
    probe_model(model, config.block_size)
    return model
