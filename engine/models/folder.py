"""What a model folder must look like before anything in it is loaded: complete, safe, served."""

import json
from pathlib import Path
from typing import Any

from engine.errors import InvalidParams, UnsupportedModel
from engine.pooling import Pooling

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".pkl")
UNTOLD_LENGTH = 8192
"""Longest sequence of a model without a table of positions, such as one with a state, whose
config.json names no length: it computes any."""
POOLING_KEY = "pooling_mode_"
MULTIMODAL_KEYS = ("vision_config", "audio_config", "image_token_id", "image_token_index")


def read_settings(folder: Path) -> dict[str, Any]:
    """The folder's config.json, once it is sure that the folder may be loaded.

    Raises:
        UnsupportedModel: files are missing or not safe, or the kind of model is not served.
    """
    settings = _read_config(folder)
    _refuse_unsupported(settings)
    _refuse_pickles(folder)
    return settings


def choose_max_model_len(wanted: int | None, trained: int | None) -> int:
    """Longest sequence in tokens: what is wanted, else the positions the model was trained for.

    Raises:
        InvalidParams: more is wanted than the model was trained for.
    """
    if trained is None:
        return wanted or UNTOLD_LENGTH
    if wanted is not None and wanted > trained:
        raise InvalidParams(
            f"max_model_len is {wanted:,} but the model was trained for {trained:,} positions.",
            "max_model_len",
        )
    return wanted or trained


def read_pooling(folder: Path) -> Pooling | None:
    """How the model's authors pool, by the `1_Pooling` of a sentence-transformers folder.

    A folder without one is pooled by its last token; None is a way that the engine doesn't have.

    Raises:
        UnsupportedModel: the file can't be read.
    """
    path = folder / "1_Pooling" / "config.json"
    if not path.is_file():
        return Pooling.LAST
    settings = _read_object(path)
    # One mode by its name, or a switch for each; several at once mean vectors side by side.
    named = settings.get("pooling_mode")
    switched = {
        name for name in settings if name.startswith(POOLING_KEY) and settings[name] is True
    }
    chosen = [named] if isinstance(named, str) else list(switched)
    by_mode = {
        "lasttoken": Pooling.LAST,
        "mean": Pooling.MEAN,
        "pooling_mode_lasttoken": Pooling.LAST,
        "pooling_mode_mean_tokens": Pooling.MEAN,
    }
    return by_mode.get(chosen[0]) if len(chosen) == 1 else None


def _read_config(folder: Path) -> dict[str, Any]:
    return _read_object(folder / "config.json")


def _read_object(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_bytes())
    except OSError as error:
        raise UnsupportedModel(
            f"{path} can't be read: {error.strerror}; give a complete model folder."
        ) from error
    except ValueError as error:
        raise UnsupportedModel(f"{path} is not valid JSON: {error}.") from error
    if not isinstance(settings, dict):
        raise UnsupportedModel(f"{path} must hold a JSON object.")
    return settings


def _refuse_unsupported(settings: dict[str, Any]) -> None:
    model_type = settings.get("model_type")
    if "auto_map" in settings:
        raise UnsupportedModel(
            "The model's config.json names remote code (auto_map), which is never run; use a model "
            "that transformers supports by itself."
        )
    if settings.get("is_encoder_decoder"):
        raise UnsupportedModel(
            f"{model_type} is an encoder-decoder model; the engine serves decoder-only models."
        )
    if any(settings.get(key) is not None for key in MULTIMODAL_KEYS):
        raise UnsupportedModel(
            f"{model_type} is a multimodal model; the engine serves text-only models. Use its "
            "text-only checkpoint if there is one."
        )


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(p.name for p in folder.iterdir() if p.suffix in PICKLE_SUFFIXES)
    if pickles:
        raise UnsupportedModel(
            f"The weights are pickles ({', '.join(pickles[:3])}), which can run code when loaded; "
            "convert them to safetensors."
        )
    raise UnsupportedModel(f"{folder} holds no *.safetensors weights; give a complete folder.")
