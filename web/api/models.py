"""``/v1/models``: what the lines of a file may name."""

from flask import Blueprint
from flask.typing import ResponseReturnValue

from runner.services import models
from web.api.wire import model_object
from web.request_scope import current_session

bp = Blueprint("models", __name__)


@bp.get("/models")
def list_models() -> ResponseReturnValue:
    """All models, in one page as the contract has it."""
    found = models.list_models(current_session())
    return {"object": "list", "data": [model_object(model) for model in found]}


@bp.get("/models/<path:name>")
def show_model(name: str) -> ResponseReturnValue:
    """One model; its name may hold slashes."""
    return model_object(models.get_model(current_session(), name))
