"""Model loading: transformers' own code with our attention, trusted only after a probe."""

from engine.config import EngineConfig
from engine.errors import EngineError, UnsupportedModel
from engine.models.hf import LoadedModel, load_from_folder
from engine.models.probe import probe_model

__all__ = ["LoadedModel", "load_model"]


def load_model(config: EngineConfig) -> LoadedModel:
    """Load the model folder and prove that it computes what the plain model does.

    Raises:
        UnsupportedModel: the folder is refused, fails to load, or the probe disagrees.
        InvalidParams: `max_model_len` is more than the model was trained for.
    """
    try:
        model = load_from_folder(config)
        probe_model(model, config.block_size)
    except EngineError:
        raise
    # Foreign code runs on a foreign folder: whatever it raises, this model can't be served.
    except Exception as error:
        raise UnsupportedModel(
            f"transformers can't load or run the model in {config.model}: {error}"
        ) from error
    return model
