"""Fused models kept on disk as they were packed and proved, so that the next start is quick.

To load a model by transformers, to prove it and to pack it takes most of a start. What is kept
holds for one folder as it lay there, this code, these libraries and this processor; when any of
them changes the model is loaded from its folder again. Each time the kept model is proved anew,
against the plain model's answers, which lie beside the weights.
"""

import contextlib
import ctypes
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from engine.attention.backend import AttentionOptions, LayerShape
from engine.cache_folder import NoCacheFolder, cache_folder, written_aside
from engine.config import EngineConfig
from engine.errors import NotPaged
from engine.kept_state import state_of
from engine.kernels import KernelsUnavailable, load_kernels
from engine.kernels.library import Layer, Stack
from engine.kernels.memory import Arena
from engine.models.fused import FusedModel
from engine.models.packing import PackedModel
from engine.models.probe import probe_model
from engine.models.rotations import Rotations
from engine.quantisation import PLAIN

logger = logging.getLogger(__name__)

KIND = "models"
"""Of cached things."""
SMALLEST_BYTES = 64 << 20
"""Weights below this are packed as soon as they are read."""
SHARE_OF_DISK = 0.5
"""Of what is free on the disk, at most this goes to a model."""


def load_kept(config: EngineConfig) -> FusedModel | None:
    """The model of `config`, proved again; None where none is kept or what is kept can't serve."""
    try:
        path = _path(config)
        if not _is_kind(config) or not path.is_file():
            return None
        kernels = load_kernels()
        with torch.inference_mode(), safe_open(path, framework="pt") as file:
            told = file.metadata()
            if told["state"] != state_of(config.model, kernels.name):
                return None
            packed = _unfold(json.loads(told["model"]), file)
            answers = [file.get_tensor(name) for name in ("answers.0", "answers.1")]
        model = FusedModel(packed, kernels)
        probe_model(model, config.block_size, answers)
    except (NoCacheFolder, KernelsUnavailable):
        return None
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, NotPaged) as error:
        logger.warning("The kept model %s is not used: %s; it is made again.", path.name, error)
        return None
    return model


def keep_model(config: EngineConfig, packed: PackedModel, answers: list[torch.Tensor]) -> None:
    """Keep a model that was proved against the plain model's `answers`, if it is worth the room."""
    has_sinks = any(options.sinks is not None for options in packed.options)
    if len(packed.arena.used) < SMALLEST_BYTES or has_sinks:
        return
    try:
        path = _path(config)
        _remove_orphans(path.parent)
        if len(packed.arena.used) > SHARE_OF_DISK * shutil.disk_usage(path.parent).free:
            logger.info("%s is not kept for the next start: too little disk is free.", packed.name)
            return
        tensors = {
            "arena": torch.from_numpy(packed.arena.used),
            "frequencies": packed.rotations.frequencies,
            "answers.0": answers[0].contiguous(),
            "answers.1": answers[1].contiguous(),
        }
        told = {
            "folder": str(config.model.resolve()),
            "state": state_of(config.model, load_kernels().name),
            "model": json.dumps(_fold(packed)),
        }
        _write(path, tensors, told)
    except (NoCacheFolder, OSError, SafetensorError) as error:
        logger.info("%s is not kept for the next start: %s.", packed.name, error)


def _is_kind(config: EngineConfig) -> bool:
    """Whether a model of these settings is of the kind that is kept."""
    return config.quantisation.weights == PLAIN and torch.device(config.device).type == "cpu"


def _path(config: EngineConfig) -> Path:
    """One file for a folder and what may be asked of it: what has changed replaces what was."""
    asked = (config.model.resolve(), config.dtype, config.block_size, config.max_model_len)
    digest = hashlib.sha256(repr(asked).encode()).hexdigest()[:24]
    return cache_folder(KIND) / f"{digest}.safetensors"


def _fold(packed: PackedModel) -> dict[str, Any]:
    """All but tensors, with places in the arena instead of addresses."""
    stack, base = packed.stack, packed.arena.base
    return {
        "name": packed.name,
        "shapes": [[s.num_kv_heads, s.key_dim, s.value_dim] for s in packed.shapes],
        "options": [[o.scale, o.window, o.softcap] for o in packed.options],
        "vocab_size": packed.vocab_size,
        "hidden_size": packed.hidden_size,
        "max_model_len": packed.max_model_len,
        "dtype": str(packed.dtype).removeprefix("torch."),
        "num_heads": packed.num_heads,
        "factor": packed.rotations.factor,
        "stack": _places(stack, base),
        "layers": [_places(stack.layers[index], base) for index in range(stack.num_layers)],
    }


def _unfold(told: dict[str, Any], file: Any) -> PackedModel:  # noqa: ANN401 - safetensors is untyped
    """What was folded, in memory of this process."""
    kept = file.get_tensor("arena")
    arena = Arena(len(kept))
    base = arena.take(len(kept))
    # Copied: pages of a file are small, and the kernels read faster from huge ones.
    torch.from_numpy(arena.used).copy_(kept)
    stack = Stack()
    _set_places(stack, told["stack"], base)
    stack.layers = (Layer * stack.num_layers)()
    for layer, places in zip(_layers(stack), told["layers"], strict=True):
        _set_places(layer, places, base)
    return PackedModel(
        name=told["name"],
        shapes=[LayerShape(*shape) for shape in told["shapes"]],
        options=[AttentionOptions(*options) for options in told["options"]],
        vocab_size=told["vocab_size"],
        hidden_size=told["hidden_size"],
        max_model_len=told["max_model_len"],
        dtype=getattr(torch, told["dtype"]),
        num_heads=told["num_heads"],
        rotations=Rotations(file.get_tensor("frequencies").clone(), told["factor"]),
        stack=stack,
        arena=arena,
    )


def _layers(stack: Stack) -> Iterator[Layer]:
    return (stack.layers[index] for index in range(stack.num_layers))


def _places(struct: ctypes.Structure, base: int) -> dict[str, Any]:
    """The fields of a structure; addresses as places behind `base`."""
    places: dict[str, Any] = {}
    for name, kind in _fields(struct):
        value = getattr(struct, name)
        if isinstance(value, ctypes.Structure):
            places[name] = _places(value, base)
        elif kind is ctypes.c_void_p:
            places[name] = None if value is None else value - base
        else:
            places[name] = value
    return places


def _set_places(struct: ctypes.Structure, places: dict[str, Any], base: int) -> None:
    for name, kind in _fields(struct):
        value = places[name]
        if issubclass(kind, ctypes.Structure):
            _set_places(getattr(struct, name), value, base)
        elif kind is ctypes.c_void_p:
            setattr(struct, name, None if value is None else value + base)
        else:
            setattr(struct, name, value)


def _fields(struct: ctypes.Structure) -> list[tuple[str, type]]:
    """Those that are kept: the layers are told beside the stack, and attention is bound later."""
    return [(field[0], field[1]) for field in struct._fields_ if field[0] not in _LEFT_OUT]


_LEFT_OUT = ("layers", "attention")


def _write(path: Path, tensors: dict[str, torch.Tensor], told: dict[str, str]) -> None:
    with written_aside(path) as made:
        save_file(tensors, made, told)
        with made.open("rb") as file:
            os.fsync(file.fileno())


def _remove_orphans(folder: Path) -> None:
    """Remove what was kept of models whose folders are gone."""
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(OSError, SafetensorError, KeyError):
            with safe_open(path, framework="np") as file:
                source = Path(file.metadata()["folder"])
            if not source.is_dir():
                path.unlink()
