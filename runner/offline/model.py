"""Which model a run's ``--model`` means, and how it is called."""

from dataclasses import replace
from pathlib import Path

from runner.config import Settings
from runner.db.session import create_session_factory
from runner.domain.errors import InvalidRequest
from runner.inference import STUB_SCHEME
from runner.model_library import describe_source, find_folder
from runner.runtime import NotRunning, find_services
from runner.services.models import NewModel, get_model


def name_of(source: str) -> str:
    """What a model is called that no line names: the end of its path, without ``.gguf``."""
    if source.startswith(STUB_SCHEME):
        return STUB_SCHEME.rstrip(":")
    path = Path(source).expanduser()
    if path.suffix == ".gguf":
        return path.stem
    return path.resolve().name if path.is_dir() else source


def open_model(place: Settings, home: Settings, source: str, name: str) -> NewModel:
    """The model of a folder, a ``.gguf`` file, a name, or the stub, under the file's name for it.

    A ``.gguf`` file is converted into the run's own place. Names are those of the installation
    ``home``: of its models' folder, and of its registry while it is up.

    Raises:
        InvalidRequest: there is no such model, or it is refused; the sentence says why.
    """
    if source.startswith(STUB_SCHEME):
        return describe_source(place, name, source)
    if source.endswith(".gguf"):
        converted = place.models_dir / name_of(source)
        known = converted if converted.is_dir() else Path(source)
        return replace(describe_source(place, name_of(source), str(known)), name=name)
    return describe_source(home, name, _folder_of(home, source))


def _folder_of(home: Settings, source: str) -> str:
    try:
        return str(find_folder(home, source))
    except InvalidRequest:
        registered = _registered(home, source)
        if registered is None:
            raise
        return registered


def _registered(home: Settings, name: str) -> str | None:
    """The path of a model of the installation's registry, if that is up."""
    try:
        urls = find_services(home)
    except NotRunning:
        return None
    sessions = create_session_factory(urls.database_url, pool_size=1)
    try:
        with sessions() as session:
            return get_model(session, name).path
    finally:
        sessions.kw["bind"].dispose()
