"""What a folder of weights must be before it is registered: safe to load, and complete.

Nothing of the model is executed here and no torch is needed.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.domain.errors import InvalidRequest

_PICKLES = {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"}
_HASH_BYTES = 1024**2


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the registry notes of a folder."""

    context_length: int
    manifest: dict[str, str]  # file name -> SHA-256


def inspect_folder(folder: Path) -> ModelFacts:
    """Check a folder and hash its files.

    Raises:
        InvalidRequest: it lacks something, holds pickles, or wants to run code of its own.
    """
    if not folder.is_dir():
        raise InvalidRequest(f"{folder} is not a folder.", param="source")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    pickles = [path.name for path in files if path.suffix in _PICKLES]
    if pickles:
        raise InvalidRequest(
            f"{folder} holds {', '.join(pickles[:3])}: pickled files can run code when loaded. "
            "Convert the weights to safetensors and remove them.",
            code="pickle_refused",
            param="source",
        )
    if not any(path.suffix == ".safetensors" for path in files):
        raise InvalidRequest(f"{folder} has no .safetensors file.", param="source")
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise InvalidRequest(f"{folder} has no {name}.", param="source")
    config = _read_config(folder)
    manifest = {path.name: _sha256(path) for path in files}
    return ModelFacts(_context_length(config, folder), manifest)


def _read_config(folder: Path) -> dict[str, Any]:
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        content = json.loads(path.read_bytes()) if path.is_file() else {}
        if "auto_map" in content:
            raise InvalidRequest(
                f"{path} names code to load (auto_map); remote code is never run. "
                "Use a model whose architecture transformers has.",
                code="remote_code_refused",
                param="source",
            )
    config: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    return config


def _context_length(config: dict[str, Any], folder: Path) -> int:
    text_config = config.get("text_config") or {}
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        value = config.get(name) or text_config.get(name)
        if isinstance(value, int) and value > 0:
            return value
    raise InvalidRequest(
        f"{folder / 'config.json'} does not tell the context length (max_position_embeddings).",
        param="source",
    )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_HASH_BYTES):
            digest.update(block)
    return digest.hexdigest()
