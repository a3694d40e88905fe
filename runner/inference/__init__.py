"""From a line's body to a model's answer. ``open_backend`` is where an engine is chosen,
``open_counter`` where its tokenizer alone is."""

from pathlib import Path

from runner.config import Settings
from runner.domain.counts import LineCounter
from runner.inference.backend import Backend

STUB_SCHEME = "stub:"  # the path of a model without weights


def open_backend(path: str, settings: Settings) -> Backend:
    """Load what answers for the model of a path: the engine, or the stub that needs no weights."""
    # Imported here so that only a process that needs an engine ever loads torch.
    if path.startswith(STUB_SCHEME):
        from runner.inference.stub import StubBackend

        return StubBackend.from_path(path)
    from runner.inference.local.backend import LocalBackend

    return LocalBackend(Path(path), settings)


def open_counter(path: str, context: int) -> LineCounter:
    """The tokens of a model that holds ``context`` of them; no torch is loaded."""
    from runner.inference.counting import TokenCounter

    if path.startswith(STUB_SCHEME):
        from runner.inference.stub import StubPrompts

        return TokenCounter(StubPrompts(), context)
    from runner.inference.local.prompts import LocalPrompts

    return TokenCounter(LocalPrompts(Path(path), context), context)
