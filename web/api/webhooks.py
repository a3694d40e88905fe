"""``/api/webhooks``: who hears of a project's events, and what was sent to them."""

from typing import Annotated
from uuid import UUID

from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from runner.domain.ids import DELIVERY_PREFIX, WEBHOOK_PREFIX, ProjectId, encode
from runner.services import deliveries, webhooks
from runner.services.webhooks import NewWebhook
from web.api.bodies import Body, read_body
from web.api.lists import read_limit
from web.api.webhook_objects import delivery_object, webhook_object
from web.api.wire import read_id
from web.auth import current_caller
from web.request_scope import current_runtime, current_session

bp = Blueprint("webhooks", __name__)

_ABOUT_EVENTS = "Kinds of events, such as batch.completed; none means all."
_MAX_DELIVERIES = 100


class CreateWebhook(Body):
    """A new address."""

    url: str
    events: Annotated[list[str], Field(description=_ABOUT_EVENTS)] = []
    description: str = ""


@bp.post("/webhooks")
def create_webhook() -> ResponseReturnValue:
    """Add an address. The answer holds the secret that signs what is sent, this once."""
    body = read_body(CreateWebhook)
    new = NewWebhook(body.url, body.events, body.description)
    trusted = current_runtime().settings.webhook_hosts
    record, secret = webhooks.create_webhook(current_session(), _project(), new, trusted)
    return webhook_object(record, secret)


@bp.get("/webhooks")
def list_webhooks() -> ResponseReturnValue:
    """All addresses of the project."""
    records = webhooks.list_webhooks(current_session(), _project())
    return {"object": "list", "data": [webhook_object(record) for record in records]}


@bp.get("/webhooks/<webhook_id>")
def show_webhook(webhook_id: str) -> ResponseReturnValue:
    """One address."""
    return webhook_object(
        webhooks.get_webhook(current_session(), _project(), _read_webhook(webhook_id))
    )


@bp.delete("/webhooks/<webhook_id>")
def delete_webhook(webhook_id: str) -> ResponseReturnValue:
    """Remove an address, and what is waiting for it."""
    wanted = _read_webhook(webhook_id)
    webhooks.delete_webhook(current_session(), _project(), wanted)
    return {"id": encode(WEBHOOK_PREFIX, wanted), "object": "webhook", "deleted": True}


@bp.post("/webhooks/<webhook_id>/rotate")
def rotate_secret(webhook_id: str) -> ResponseReturnValue:
    """Make a new secret; for a day the old one signs as well."""
    wanted = _read_webhook(webhook_id)
    secret = webhooks.rotate_secret(current_session(), _project(), wanted)
    return webhook_object(webhooks.get_webhook(current_session(), _project(), wanted), secret)


@bp.post("/webhooks/<webhook_id>/resume")
def resume_webhook(webhook_id: str) -> ResponseReturnValue:
    """Send again to an address that was paused because it failed."""
    return webhook_object(
        webhooks.resume_webhook(current_session(), _project(), _read_webhook(webhook_id))
    )


@bp.post("/webhooks/<webhook_id>/test")
def try_webhook(webhook_id: str) -> ResponseReturnValue:
    """Send an event of the kind webhook.test, which means nothing."""
    return delivery_object(
        deliveries.send_test(current_session(), _project(), _read_webhook(webhook_id))
    )


@bp.get("/webhooks/<webhook_id>/deliveries")
def list_deliveries(webhook_id: str) -> ResponseReturnValue:
    """What was sent to an address of late, and what came of each try."""
    count = read_limit(default=20, maximum=_MAX_DELIVERIES)
    records = deliveries.list_deliveries(
        current_session(), _project(), _read_webhook(webhook_id), count
    )
    return {"object": "list", "data": [delivery_object(record) for record in records]}


@bp.post("/webhooks/<webhook_id>/deliveries/<delivery_id>/replay")
def replay_delivery(webhook_id: str, delivery_id: str) -> ResponseReturnValue:
    """Send the event of a delivery once more, under the same event id."""
    delivery = read_id(DELIVERY_PREFIX, delivery_id, "delivery", "delivery_id")
    return delivery_object(
        deliveries.replay(current_session(), _project(), _read_webhook(webhook_id), delivery)
    )


def _project() -> ProjectId:
    return current_caller().project_id


def _read_webhook(text: str) -> UUID:
    return read_id(WEBHOOK_PREFIX, text, "webhook", "webhook_id")
