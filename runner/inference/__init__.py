"""From a line's body to a model's answer. ``open_backend`` is where an engine is chosen."""

from pathlib import Path

from runner.config import Settings
from runner.inference.backend import Backend

STUB_SCHEME = "stub:"  # the path of a model without weights


def open_backend(path: str, settings: Settings) -> Backend:
    """Load what answers for the model of a path: the engine, or the stub that needs no weights."""
    # Imported here so that only a process that needs an engine ever loads torch.
    if path.startswith(STUB_SCHEME):
        from runner.inference.stub import StubBackend

        return StubBackend.from_path(path)
    from runner.inference.local import LocalBackend

    return LocalBackend(Path(path), settings)
