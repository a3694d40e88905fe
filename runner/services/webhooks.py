"""The addresses of a project that want to hear of events."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from runner.db.models import Webhook
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import ProjectId, WebhookId
from runner.domain.webhooks import new_secret, read_kinds
from runner.outbound import check_url
from runner.services.audit import record

MAX_WEBHOOKS = 20  # of a project
_MAX_DESCRIPTION = 200
_ROTATION = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """An address, without its secret. No ``kinds`` means all of them."""

    id: WebhookId
    url: str
    description: str
    kinds: tuple[str, ...]
    created_at: datetime
    paused_at: datetime | None
    pause_reason: str | None
    previous_secret_until: datetime | None


@dataclass(frozen=True, slots=True)
class NewWebhook:
    """What an owner says of an address."""

    url: str
    kinds: Sequence[str] = ()
    description: str = ""


def create_webhook(
    session: Session, project_id: ProjectId, new: NewWebhook, trusted_hosts: Collection[str]
) -> tuple[WebhookRecord, str]:
    """Add an address; returns it and its secret, which is shown once.

    Raises:
        InvalidRequest: the url can't be one, an event is unknown, or there are too many addresses.
    """
    check_url(new.url, trusted_hosts)
    if len(new.description) > _MAX_DESCRIPTION:
        raise InvalidRequest(
            f"A description has at most {_MAX_DESCRIPTION} characters.", param="description"
        )
    count = select(func.count()).where(Webhook.project_id == project_id)
    if session.scalars(count).one() >= MAX_WEBHOOKS:
        raise InvalidRequest(f"A project has at most {MAX_WEBHOOKS} webhooks; remove one first.")
    row = Webhook(
        project_id=project_id,
        url=new.url,
        description=new.description,
        kinds=read_kinds(new.kinds),
        secret=new_secret(),
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    record(session, "webhook.create", str(row.id), project_id=project_id, detail={"url": row.url})
    return record_of(row), row.secret


def list_webhooks(session: Session, project_id: ProjectId) -> list[WebhookRecord]:
    """A project's addresses, oldest first."""
    mine = select(Webhook).where(Webhook.project_id == project_id).order_by(Webhook.id)
    return [record_of(row) for row in session.scalars(mine)]


def get_webhook(session: Session, project_id: ProjectId, webhook_id: UUID) -> WebhookRecord:
    """One address of a project."""
    return record_of(find_webhook(session, project_id, webhook_id))


def rotate_secret(session: Session, project_id: ProjectId, webhook_id: UUID) -> str:
    """Make a new secret. For a day both sign, so that a receiver can change over in its own time.

    Raises:
        StateConflict: the last rotation is not over; a third secret would cut off its receiver.
    """
    row = find_webhook(session, project_id, webhook_id, locked=True)
    now = session.scalars(select(func.now())).one()
    if row.previous_secret_until is not None and row.previous_secret_until > now:
        raise StateConflict(
            "The secret was changed less than a day ago; the one before is still good until "
            f"{row.previous_secret_until:%Y-%m-%d %H:%M} UTC."
        )
    row.previous_secret, row.previous_secret_until = row.secret, now + _ROTATION
    row.secret = new_secret()
    record(session, "webhook.rotate", str(row.id), project_id=project_id)
    return row.secret


def resume_webhook(session: Session, project_id: ProjectId, webhook_id: UUID) -> WebhookRecord:
    """Send to an address again; what happened while it was paused can be replayed."""
    row = find_webhook(session, project_id, webhook_id, locked=True)
    row.paused_at = row.pause_reason = None
    record(session, "webhook.resume", str(row.id), project_id=project_id)
    return record_of(row)


def delete_webhook(session: Session, project_id: ProjectId, webhook_id: UUID) -> None:
    """Remove an address and what is waiting for it."""
    row = find_webhook(session, project_id, webhook_id)
    session.execute(delete(Webhook).where(Webhook.id == row.id))
    record(session, "webhook.delete", str(row.id), project_id=project_id, detail={"url": row.url})


def find_webhook(
    session: Session, project_id: ProjectId, webhook_id: UUID, locked: bool = False
) -> Webhook:
    """The row of an address.

    Raises:
        NotFound: the project has none of that id.
    """
    query = select(Webhook).where(Webhook.id == webhook_id, Webhook.project_id == project_id)
    row = session.scalars(query.with_for_update() if locked else query).one_or_none()
    if row is None:
        raise NotFound("There is no such webhook in this project.", param="webhook_id")
    return row


def record_of(row: Webhook) -> WebhookRecord:
    """What may be shown of an address."""
    return WebhookRecord(
        id=WebhookId(row.id),
        url=row.url,
        description=row.description,
        kinds=tuple(row.kinds),
        created_at=row.created_at,
        paused_at=row.paused_at,
        pause_reason=row.pause_reason,
        previous_secret_until=row.previous_secret_until,
    )
