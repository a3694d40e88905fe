"""What events look like outside, when their delivery is tried again, and how it is signed.

The form of the messages and of their signatures is Standard Webhooks 1.0, as OpenAI uses it.
"""

import json
import random
import secrets
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from standardwebhooks import Webhook as Signer

from runner.domain.errors import InvalidRequest
from runner.domain.ids import JOB_PREFIX, encode

KINDS = {
    "batch.completed": "A job ended, and every line has its result or its error.",
    "batch.failed": "A job could not be run; its errors say why.",
    "batch.expired": "A job's window closed before its last line was done.",
    "batch.cancelled": "A job was cancelled and has ended.",
    "job.paused": "A job was paused by a budget.",
    "job.deadline_at_risk": "A job will miss its deadline at the present rate.",
    "job.latency_above_bound": "The p99 of a job's lines is above its bound.",
    "budget.alert": "50, 80 or 100 % of a limit of money are spent.",
}
TEST_KIND = "webhook.test"
"""Sent on request, to one address only."""

# The delays before the second try and those after it: 18 hours in all.
RETRY_AFTER = tuple(timedelta(seconds=s) for s in (5, 60, 300, 1800, 7200, 18_000, 36_000))
_JITTER = 0.2
_SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that became true at a moment."""

    id: int
    kind: str
    payload: dict[str, Any]
    created_at: datetime


def new_secret() -> str:
    """A secret to sign with, shown to the owner of the address once."""
    return SECRET_PREFIX + b64encode(secrets.token_bytes(_SECRET_BYTES)).decode()


def read_kinds(kinds: Sequence[str]) -> list[str]:
    """The kinds that an address asks for, each once; none means all."""
    unknown = next((kind for kind in kinds if kind not in KINDS), None)
    if unknown is not None:
        known = ", ".join(KINDS)
        raise InvalidRequest(f"There is no event {unknown!r}; there are: {known}.", param="events")
    return list(dict.fromkeys(kinds))


def next_try(attempts: int) -> timedelta | None:
    """How long to wait after so many failed tries; None once there were enough.

    A fifth is left to chance, so that what failed together does not come back together.
    """
    if attempts > len(RETRY_AFTER):
        return None
    return RETRY_AFTER[attempts - 1] * random.uniform(1 - _JITTER, 1 + _JITTER)


def event_id(event: Event) -> str:
    """The same in every try and replay, so that a receiver can tell what it has seen."""
    return f"evt_{event.id}"


def body_of(event: Event) -> bytes:
    """The message as it is signed and sent.

    ``data.id`` is the wire id of the job, where the event is one of a job; everything else that
    the event holds stands beside it.
    """
    data = dict(event.payload)
    job_id = data.pop("job_id", None)
    if job_id is not None:
        data = {"id": encode(JOB_PREFIX, UUID(job_id)), **data}
    message = {
        "id": event_id(event),
        "object": "event",
        "created_at": int(event.created_at.timestamp()),
        "type": event.kind,
        "data": data,
    }
    return json.dumps(message, separators=(",", ":")).encode()


def headers_of(event: Event, body: bytes, secrets: Sequence[str], now: datetime) -> dict[str, str]:
    """The headers of a try at a moment; during a rotation each secret signs."""
    text, name = body.decode(), event_id(event)
    signatures = [Signer(secret).sign(name, now, text) for secret in secrets]
    return {
        "content-type": "application/json",
        "user-agent": "tokenmill-webhooks/1",
        "webhook-id": name,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }
