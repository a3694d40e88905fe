"""The Flask application. ``create_app`` is its composition root; gunicorn calls it by name."""

from flask import Flask

from runner.config import load_settings
from runner.runtime import Runtime, open_runtime
from web import api, reference, ui
from web.request_scope import ScopedFlask

_MAX_BODY_BYTES = 1024**2  # of any request but an upload, which counts for itself
_MAX_FORM_PARTS = 100
_PATIENCE_SECONDS = 60.0  # of a statement


def create_app(runtime: Runtime | None = None) -> Flask:
    """The application on a runtime; without one, on that of the environment's settings."""
    app = ScopedFlask(runtime or open_runtime(load_settings(), _PATIENCE_SECONDS))
    app.config.update(
        MAX_CONTENT_LENGTH=_MAX_BODY_BYTES,
        MAX_FORM_MEMORY_SIZE=_MAX_BODY_BYTES,
        MAX_FORM_PARTS=_MAX_FORM_PARTS,
    )
    api.register(app)
    ui.register(app)
    reference.register(app)
    return app
