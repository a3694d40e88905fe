"""Identifiers: UUIDs ordered by time inside, short prefixed texts outside."""

import hashlib
from datetime import datetime
from typing import NewType
from uuid import UUID

import uuid_utils.compat

ProjectId = NewType("ProjectId", UUID)
ApiKeyId = NewType("ApiKeyId", UUID)
ModelId = NewType("ModelId", UUID)
FileId = NewType("FileId", UUID)
JobId = NewType("JobId", UUID)
WorkerId = NewType("WorkerId", UUID)
PriceId = NewType("PriceId", UUID)
UploadId = NewType("UploadId", UUID)
PartId = NewType("PartId", UUID)
ScheduleId = NewType("ScheduleId", UUID)
RunId = NewType("RunId", UUID)
WebhookId = NewType("WebhookId", UUID)
DeliveryId = NewType("DeliveryId", UUID)

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no i, l, o, u
_VALUES = {letter: value for value, letter in enumerate(_ALPHABET)}
_LENGTH = 26  # characters that hold 128 bits

PROJECT_PREFIX = "proj_"
API_KEY_PREFIX = "key_"
FILE_PREFIX = "file-"
BUDGET_PREFIX = "budget_"
JOB_PREFIX = "batch_"
ITEM_PREFIX = "batch_req_"
CALL_PREFIX = "call_"
WORKER_PREFIX = "worker_"
UPLOAD_PREFIX = "upload_"
PART_PREFIX = "part_"
SCHEDULE_PREFIX = "sched_"
RUN_PREFIX = "run_"
WEBHOOK_PREFIX = "webhook_"
DELIVERY_PREFIX = "delivery_"


def new_uuid() -> UUID:
    """A version 7 UUID: its first 48 bits are the time in milliseconds."""
    return uuid_utils.compat.uuid7()


def encode(prefix: str, value: UUID) -> str:
    """The outer form of an id, e.g. ``batch_06etk…`` (prefix and 26 characters)."""
    number = value.int
    letters = []
    for _ in range(_LENGTH):
        letters.append(_ALPHABET[number & 31])
        number >>= 5
    return prefix + "".join(reversed(letters))


def decode(prefix: str, text: str) -> UUID | None:
    """The UUID behind an outer id, or None when the text cannot be one."""
    body = text[len(prefix) :]
    if not text.startswith(prefix) or len(body) != _LENGTH:
        return None
    number = 0
    for letter in body:
        value = _VALUES.get(letter)
        if value is None:
            return None
        number = number << 5 | value
    return UUID(int=number) if number < 1 << 128 else None


def item_id(job_id: UUID, idx: int) -> str:
    """The wire id of one line of a job: the job's letters and the line's number."""
    return f"{ITEM_PREFIX}{encode('', job_id)}_{idx}"


def call_id(line_id: str, choice: int, number: int) -> str:
    """The wire id of a tool call: the same in each rerun of a line, and never twice in a job."""
    name = f"{line_id}/{choice}/{number}"
    return CALL_PREFIX + hashlib.blake2b(name.encode(), digest_size=12).hexdigest()


def first_uuid_at(moment: datetime) -> UUID:
    """The smallest version 7 UUID of a moment: the bound of a partition by time."""
    return UUID(int=int(moment.timestamp() * 1000) << 80)
