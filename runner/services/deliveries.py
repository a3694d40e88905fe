"""Events on their way out: laid out for each address, sent, tried again, and shown.

A delivery is at least once. Its row is claimed by moving its next try into the future and sent
outside of any transaction, so a worker that dies in between costs a repetition, never a loss;
``webhook-id`` stays the same, by which a receiver knows what it has had.
"""

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import ColumnElement, func, literal, or_, select, update
from sqlalchemy.orm import Session

from runner.db.models import Delivery, DeliveryAttempt, OutboxEvent, Webhook
from runner.db.session import SessionFactory
from runner.domain.errors import NotFound, StateConflict
from runner.domain.ids import DeliveryId, ProjectId, new_uuid
from runner.domain.rings import Bell
from runner.domain.states import DeliveryState
from runner.domain.webhooks import RETRY_AFTER, TEST_KIND, Event, body_of, headers_of, next_try
from runner.doorbell import ring
from runner.outbound import Answer, post
from runner.services.audit import record
from runner.services.webhooks import find_webhook

logger = logging.getLogger(__name__)

_CLAIMED_FOR = timedelta(minutes=1)  # far above the longest try
_AT_ONCE = 8
_ROUNDS = 4
_EVENTS_A_ROUND = 500
_GONE = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try, with the status of the answer or why there was none."""

    at: datetime
    status: int | None
    fault: str | None
    duration_ms: int


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """One event on its way to one address, with its tries, oldest first."""

    id: DeliveryId
    event: Event
    state: DeliveryState
    created_at: datetime
    next_try_at: datetime | None
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class _Claimed:
    """What a try needs."""

    delivery_id: UUID
    url: str
    secrets: tuple[str, ...]
    event: Event
    attempts: int
    now: datetime


def ring_for_events(session: Session) -> None:
    """Ring for events that somebody waits for and deliveries that are due."""
    listens = select(Webhook.id).where(
        Webhook.project_id == OutboxEvent.project_id, Webhook.paused_at.is_(None)
    )
    unsent = select(OutboxEvent.id).where(OutboxEvent.sent_at.is_(None), listens.exists()).limit(1)
    due = select(Delivery.id).where(*_is_due()).limit(1)
    if session.scalar(unsent) is not None or session.scalar(due) is not None:
        ring(session, Bell.DELIVER)


def deliver_events(sessions: SessionFactory, trusted_hosts: Collection[str]) -> int:
    """Lay out new events and send some of what is due; returns the number of tries.

    Slow receivers must not keep a worker from its other work: what is left is rung for again.
    """
    while True:
        with sessions.begin() as session:
            if not lay_out(session):
                break
    tries = 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="webhook") as threads:
        for _ in range(_ROUNDS):
            with sessions.begin() as session:
                claimed = _claim(session)
            answers = threads.map(lambda one: _send(one, trusted_hosts), claimed)
            for one, answer in zip(claimed, answers, strict=True):
                with sessions.begin() as session:
                    _settle(session, one, answer)
            tries += len(claimed)
            if len(claimed) < _AT_ONCE:
                break
    return tries


def lay_out(session: Session) -> int:
    """Make a delivery of each new event for each address that asks for its kind and was there."""
    events = session.scalars(
        select(OutboxEvent)
        .where(OutboxEvent.sent_at.is_(None))
        .order_by(OutboxEvent.id)
        .limit(_EVENTS_A_ROUND)
        .with_for_update(skip_locked=True)
    ).all()
    for event in events:
        asks = or_(
            func.cardinality(Webhook.kinds) == 0, literal(event.kind) == func.any(Webhook.kinds)
        )
        wanted = select(Webhook.id).where(
            Webhook.project_id == event.project_id,
            Webhook.paused_at.is_(None),
            Webhook.created_at <= event.created_at,
            asks,
        )
        for webhook_id in session.scalars(wanted):
            session.add(Delivery(webhook_id=webhook_id, event_id=event.id))
        event.sent_at = func.now()
    return len(events)


def send_test(session: Session, project_id: ProjectId, webhook_id: UUID) -> DeliveryRecord:
    """Send an event of no meaning to one address, to see whether it arrives."""
    webhook = find_webhook(session, project_id, webhook_id)
    payload = {"message": "This is a test. Nothing has happened."}
    event = OutboxEvent(project_id=project_id, kind=TEST_KIND, payload=payload, sent_at=func.now())
    session.add(event)
    session.flush()
    return _start(session, webhook, event)


def replay(
    session: Session, project_id: ProjectId, webhook_id: UUID, delivery_id: UUID
) -> DeliveryRecord:
    """Send an event once more, whatever became of it.

    Raises:
        NotFound: the address has no such delivery.
        StateConflict: it is still being tried, or the address is paused.
    """
    webhook = find_webhook(session, project_id, webhook_id)
    if webhook.paused_at is not None:
        raise StateConflict("The webhook is paused; resume it first.")
    wanted = (Delivery.id == delivery_id, Delivery.webhook_id == webhook.id)
    row = session.scalars(select(Delivery).where(*wanted)).one_or_none()
    if row is None:
        raise NotFound("The webhook has no such delivery.", param="delivery_id")
    if row.state == DeliveryState.WAITING:
        raise StateConflict("The delivery is still being tried.")
    return _start(session, webhook, session.get_one(OutboxEvent, row.event_id))


def list_deliveries(
    session: Session, project_id: ProjectId, webhook_id: UUID, count: int
) -> list[DeliveryRecord]:
    """The latest deliveries of an address, newest first."""
    webhook = find_webhook(session, project_id, webhook_id)
    query = (
        select(Delivery, OutboxEvent)
        .join(OutboxEvent, OutboxEvent.id == Delivery.event_id)
        .where(Delivery.webhook_id == webhook.id)
        .order_by(Delivery.id.desc())
        .limit(count)
    )
    rows = session.execute(query).all()
    tries = _attempts_of(session, [row.id for row, _ in rows])
    return [_record_of(row, event, tries.get(row.id, ())) for row, event in rows]


def _start(session: Session, webhook: Webhook, event: OutboxEvent) -> DeliveryRecord:
    row = Delivery(id=new_uuid(), webhook_id=webhook.id, event_id=event.id)
    session.add(row)
    session.flush()
    session.refresh(row)
    session.refresh(event)
    ring(session, Bell.DELIVER)
    return _record_of(row, event, ())


def _is_due() -> tuple[ColumnElement[bool], ...]:
    return (Delivery.state == DeliveryState.WAITING, Delivery.not_before <= func.now())


def _claim(session: Session) -> list[_Claimed]:
    """Take some due deliveries: for a while nobody else will try them."""
    rows = session.execute(
        select(Delivery, Webhook, OutboxEvent, func.now())
        .join(Webhook, Webhook.id == Delivery.webhook_id)
        .join(OutboxEvent, OutboxEvent.id == Delivery.event_id)
        .where(*_is_due(), Webhook.paused_at.is_(None))
        .order_by(Delivery.not_before)
        .limit(_AT_ONCE)
        .with_for_update(of=Delivery, skip_locked=True)
    ).all()
    claimed = []
    for row, webhook, event, now in rows:
        row.attempts += 1
        row.not_before = now + _CLAIMED_FOR
        secrets = [webhook.secret]
        until = webhook.previous_secret_until
        if webhook.previous_secret is not None and until is not None and until > now:
            secrets.append(webhook.previous_secret)
        told = _event_of(event)
        claimed.append(_Claimed(row.id, webhook.url, tuple(secrets), told, row.attempts, now))
    return claimed


def _send(one: _Claimed, trusted_hosts: Collection[str]) -> Answer:
    body = body_of(one.event)
    return post(one.url, headers_of(one.event, body, one.secrets, one.now), body, trusted_hosts)


def _settle(session: Session, one: _Claimed, answer: Answer) -> None:
    """Note a try and what follows from it; the delivery may have gone with its webhook."""
    row = session.get(Delivery, one.delivery_id, with_for_update=True)
    if row is None or row.state != DeliveryState.WAITING:
        return
    session.add(
        DeliveryAttempt(
            delivery_id=row.id,
            status=answer.status,
            fault=answer.fault,
            duration_ms=answer.duration_ms,
        )
    )
    wait = None if answer.status == _GONE else next_try(one.attempts)
    if answer.is_good:
        row.state, row.ended_at = DeliveryState.DELIVERED, func.now()
    elif wait is not None:
        row.not_before = func.now() + wait
    else:
        row.state, row.ended_at = DeliveryState.FAILED, func.now()
        _pause(session, row.webhook_id, answer)


def _pause(session: Session, webhook_id: UUID, answer: Answer) -> None:
    """Leave an address alone that is gone, or failed one event for as long as we try."""
    reason = "The receiver says that it is gone (410)."
    if answer.status != _GONE:
        reason = f"An event failed {len(RETRY_AFTER) + 1} times. The last time: {answer.fault}"
    paused = (
        update(Webhook)
        .where(Webhook.id == webhook_id, Webhook.paused_at.is_(None))
        .values(paused_at=func.now(), pause_reason=reason)
        .returning(Webhook.project_id)
    )
    project_id = session.scalar(paused)
    if project_id is not None:
        logger.warning(
            "Webhook %s is paused: %s", webhook_id, reason, extra={"action": "webhook_paused"}
        )
        record(session, "webhook.pause", str(webhook_id), project_id=project_id, actor="deliveries")


def _attempts_of(session: Session, ids: Sequence[UUID]) -> dict[UUID, tuple[Attempt, ...]]:
    tries: dict[UUID, tuple[Attempt, ...]] = {}
    query = select(DeliveryAttempt).where(DeliveryAttempt.delivery_id.in_(ids))
    for row in session.scalars(query.order_by(DeliveryAttempt.id)):
        attempt = Attempt(row.at, row.status, row.fault, row.duration_ms)
        tries[row.delivery_id] = (*tries.get(row.delivery_id, ()), attempt)
    return tries


def _record_of(row: Delivery, event: OutboxEvent, tries: tuple[Attempt, ...]) -> DeliveryRecord:
    return DeliveryRecord(
        id=DeliveryId(row.id),
        event=_event_of(event),
        state=DeliveryState(row.state),
        created_at=row.created_at,
        next_try_at=row.not_before if row.state == DeliveryState.WAITING else None,
        attempts=tries,
    )


def _event_of(row: OutboxEvent) -> Event:
    return Event(row.id, row.kind, row.payload, row.created_at)
