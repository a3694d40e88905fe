"""What routes of webhooks answer. A secret is shown where it was just made, and never again."""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from runner.domain.ids import DELIVERY_PREFIX, WEBHOOK_PREFIX, encode
from runner.domain.states import DeliveryState
from runner.domain.webhooks import event_id
from runner.services.deliveries import DeliveryRecord
from runner.services.webhooks import WebhookRecord
from web.api.wire import seconds, seconds_or_none


class WebhookObject(TypedDict):
    """An address that hears of events. No events in the list means all of them."""

    id: str
    object: Literal["webhook"]
    url: str
    description: str
    events: list[str]
    created_at: int
    paused_at: int | None
    pause_reason: str | None
    previous_secret_until: int | None
    secret: NotRequired[Annotated[str, Meta(description="Only where it was just made.")]]


class WebhookList(TypedDict):
    """All addresses of a project, oldest first."""

    object: Literal["list"]
    data: list[WebhookObject]


class DeletedWebhook(TypedDict):
    """The address is gone."""

    id: str
    object: Literal["webhook"]
    deleted: Literal[True]


class AttemptObject(TypedDict):
    """One try: the status of the answer, or why it is no good one."""

    at: int
    status: int | None
    fault: str | None
    duration_ms: int


class DeliveryObject(TypedDict):
    """An event on its way to an address, with every try, oldest first."""

    id: str
    object: Literal["webhook.delivery"]
    event_id: str
    event: str
    state: DeliveryState
    created_at: int
    next_try_at: int | None
    attempts: list[AttemptObject]


class DeliveryList(TypedDict):
    """The latest deliveries of an address, newest first."""

    object: Literal["list"]
    data: list[DeliveryObject]


def webhook_object(record: WebhookRecord, secret: str | None = None) -> WebhookObject:
    """An address as the wire has it."""
    shown: WebhookObject = {
        "id": encode(WEBHOOK_PREFIX, record.id),
        "object": "webhook",
        "url": record.url,
        "description": record.description,
        "events": list(record.kinds),
        "created_at": seconds(record.created_at),
        "paused_at": seconds_or_none(record.paused_at),
        "pause_reason": record.pause_reason,
        "previous_secret_until": seconds_or_none(record.previous_secret_until),
    }
    if secret is not None:
        shown["secret"] = secret
    return shown


def delivery_object(record: DeliveryRecord) -> DeliveryObject:
    """A delivery as the wire has it."""
    return {
        "id": encode(DELIVERY_PREFIX, record.id),
        "object": "webhook.delivery",
        "event_id": event_id(record.event),
        "event": record.event.kind,
        "state": record.state,
        "created_at": seconds(record.created_at),
        "next_try_at": seconds_or_none(record.next_try_at),
        "attempts": [
            {
                "at": seconds(attempt.at),
                "status": attempt.status,
                "fault": attempt.fault,
                "duration_ms": attempt.duration_ms,
            }
            for attempt in record.attempts
        ],
    }
