"""The pages of webhooks: who hears of events, what was sent, and what came of it."""

from uuid import UUID

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.errors import InvalidRequest, NotFound
from runner.domain.ids import DELIVERY_PREFIX, WEBHOOK_PREFIX, ProjectId, decode, encode
from runner.domain.webhooks import KINDS, event_id
from runner.services import deliveries, webhooks
from runner.services.webhooks import NewWebhook, WebhookRecord
from web.request_scope import current_runtime, current_session
from web.ui.guard import current_caller, require_session, require_token

bp = Blueprint("webhooks", __name__)
bp.before_request(require_session)

_DELIVERIES_SHOWN = 30
_EVENTS, _URL, _DESCRIPTION = "event", "url", "description"


@bp.app_template_filter("webhook_id")
def outer_id(record: WebhookRecord) -> str:
    """The id of a webhook as in its page's address."""
    return encode(WEBHOOK_PREFIX, record.id)


@bp.app_template_filter("delivery_id")
def outer_delivery_id(value: UUID) -> str:
    """The id of a delivery as in a form's address."""
    return encode(DELIVERY_PREFIX, value)


@bp.get("/webhooks")
def show_webhooks() -> ResponseReturnValue:
    """All addresses, and the way to add one."""
    records = webhooks.list_webhooks(current_session(), _project())
    return render_template("webhooks.html", webhooks=records, kinds=KINDS)


@bp.post("/webhooks")
def create_webhook() -> ResponseReturnValue:
    """Add an address, and show its secret this once."""
    require_token()
    url = request.form.get(_URL, "").strip()
    if not url:
        raise InvalidRequest("Give the url that events are to be posted to.", param=_URL)
    kinds = request.form.getlist(_EVENTS)
    # All ticked means all that there will ever be.
    wanted = () if len(kinds) == len(KINDS) else kinds
    new = NewWebhook(url, wanted, request.form.get(_DESCRIPTION, "").strip())
    trusted = current_runtime().settings.webhook_hosts
    record, secret = webhooks.create_webhook(current_session(), _project(), new, trusted)
    return _page(record.id, secret)


@bp.get("/webhooks/<webhook_id>")
def show_webhook(webhook_id: str) -> ResponseReturnValue:
    """One address and its latest deliveries."""
    return _page(_read_webhook(webhook_id))


@bp.post("/webhooks/<webhook_id>/<verb>")
def change_webhook(webhook_id: str, verb: str) -> ResponseReturnValue:
    """What may be done with an address: test, rotate, resume, delete."""
    require_token()
    session, wanted = current_session(), _read_webhook(webhook_id)
    match verb:
        case "test":
            deliveries.send_test(session, _project(), wanted)
        case "rotate":
            return _page(wanted, webhooks.rotate_secret(session, _project(), wanted))
        case "resume":
            webhooks.resume_webhook(session, _project(), wanted)
        case "delete":
            webhooks.delete_webhook(session, _project(), wanted)
            return redirect(url_for("ui.webhooks.show_webhooks"), 303)
        case _:
            raise NotFound("There is no such page.")
    return redirect(url_for("ui.webhooks.show_webhook", webhook_id=webhook_id), 303)


@bp.post("/webhooks/<webhook_id>/deliveries/<delivery_id>/replay")
def replay_delivery(webhook_id: str, delivery_id: str) -> ResponseReturnValue:
    """Send an event once more."""
    require_token()
    delivery = decode(DELIVERY_PREFIX, delivery_id)
    if delivery is None:
        raise NotFound("The webhook has no such delivery.", param="delivery_id")
    deliveries.replay(current_session(), _project(), _read_webhook(webhook_id), delivery)
    return redirect(url_for("ui.webhooks.show_webhook", webhook_id=webhook_id), 303)


def _page(webhook_id: UUID, secret: str | None = None) -> str:
    record = webhooks.get_webhook(current_session(), _project(), webhook_id)
    sent = deliveries.list_deliveries(current_session(), _project(), webhook_id, _DELIVERIES_SHOWN)
    return render_template(
        "webhook.html", webhook=record, secret=secret, deliveries=sent, event_id=event_id
    )


def _project() -> ProjectId:
    return current_caller().project_id


def _read_webhook(text: str) -> UUID:
    value = decode(WEBHOOK_PREFIX, text)
    if value is None:
        raise NotFound("There is no such webhook in this project.", param="webhook_id")
    return value
