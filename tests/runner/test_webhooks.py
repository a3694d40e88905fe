"""Events reach every address that asks for them, signed, at least once, and not for ever."""

from collections.abc import Iterator

import pytest
from openai import OpenAI
from openai.types.webhooks import BatchCompletedWebhookEvent
from receiver import Receiver, receiving
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import AuditEntry, Delivery, OutboxEvent, Webhook
from runner.domain.errors import InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JOB_PREFIX, WebhookId, encode
from runner.domain.rings import Bell, Ring
from runner.domain.webhooks import KINDS, RETRY_AFTER, next_try
from runner.services import deliveries, webhooks
from runner.services.deliveries import DeliveryRecord, deliver_events
from runner.services.events import announce
from runner.services.webhooks import MAX_WEBHOOKS, NewWebhook


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


class Post:
    """The webhooks of a workshop's project, all at one receiver."""

    def __init__(self, workshop: Workshop, receiver: Receiver) -> None:
        self.workshop = workshop
        self.project_id = workshop.caller.project_id
        self.receiver = receiver
        self.secret = ""

    def add(self, *kinds: str) -> WebhookId:
        with self.workshop.sessions.begin() as session:
            new = NewWebhook(self.receiver.url, kinds)
            record, self.secret = webhooks.create_webhook(
                session, self.project_id, new, (self.receiver.host,)
            )
        return record.id

    def announce(self, kind: str, **payload: object) -> None:
        with self.workshop.sessions.begin() as session:
            announce(session, self.project_id, kind, payload)

    def deliver(self) -> int:
        return deliver_events(self.workshop.sessions, (self.receiver.host,))

    def make_due(self) -> None:
        self.workshop.execute(
            update(Delivery).where(Delivery.state == "waiting").values(not_before=func.now())
        )

    def sent(self, webhook: WebhookId) -> list[DeliveryRecord]:
        with self.workshop.sessions.begin() as session:
            return deliveries.list_deliveries(session, self.project_id, webhook, 100)

    def replay(self, webhook: WebhookId, delivery: DeliveryRecord) -> DeliveryRecord:
        with self.workshop.sessions.begin() as session:
            return deliveries.replay(session, self.project_id, webhook, delivery.id)


@pytest.fixture
def post(workshop: Workshop, receiver: Receiver) -> Post:
    return Post(workshop, receiver)


def test_the_official_client_unwraps_the_end_of_a_job(post: Post) -> None:
    webhook = post.add()
    job_id = post.workshop.make_job(2)
    post.workshop.drain()
    assert post.deliver() == 1
    (got,) = post.receiver.received
    client = OpenAI(api_key="none", webhook_secret=post.secret)
    event = client.webhooks.unwrap(got.body.decode(), got.headers)
    assert isinstance(event, BatchCompletedWebhookEvent)
    assert event.data.id == encode(JOB_PREFIX, job_id)
    assert event.id == got.headers["webhook-id"]
    (delivery,) = post.sent(webhook)
    assert (delivery.state, [a.status for a in delivery.attempts]) == ("delivered", [200])


def test_a_forged_message_is_no_message(post: Post) -> None:
    post.add()
    post.announce("job.paused", reason="budget")
    post.deliver()
    (got,) = post.receiver.received
    client = OpenAI(api_key="none", webhook_secret=post.secret)
    with pytest.raises(ValueError, match="signature"):
        client.webhooks.unwrap(got.body.decode().replace("budget", "badger"), got.headers)


def test_an_address_hears_of_what_it_asks_for(post: Post) -> None:
    some, every = post.add("budget.alert"), post.add()
    post.announce("budget.alert", percent=50)
    post.announce("job.paused", reason="budget")
    post.deliver()
    assert [d.event.kind for d in post.sent(some)] == ["budget.alert"]
    assert [d.event.kind for d in post.sent(every)] == ["job.paused", "budget.alert"]


def test_another_project_hears_nothing(post: Post) -> None:
    post.add()
    with post.workshop.sessions.begin() as session:
        other = post.workshop.make_caller("another").project_id
        announce(session, other, "budget.alert", {"percent": 80})
    assert post.deliver() == 0
    assert post.workshop.scalar(select(func.count()).where(OutboxEvent.sent_at.is_(None))) == 0


def test_every_event_that_is_announced_is_one_that_can_be_asked_for() -> None:
    named = {"completed", "failed", "expired", "cancelled"}
    assert {f"batch.{state}" for state in named} <= KINDS.keys()
    assert {"job.paused", "budget.alert"} <= KINDS.keys()


def test_a_failed_try_is_repeated_later_under_the_same_id(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first pause is of seconds, and the machine may stand still for as long.
    monkeypatch.setattr("runner.domain.webhooks.RETRY_AFTER", RETRY_AFTER[2:])
    webhook = post.add()
    post.receiver.statuses = [500, 503, 200]
    post.announce("budget.alert", percent=50)
    assert post.deliver() == 1
    assert post.deliver() == 0, "not before its time"
    for _ in range(2):
        post.make_due()
        assert post.deliver() == 1
    assert len({got.headers["webhook-id"] for got in post.receiver.received}) == 1
    (delivery,) = post.sent(webhook)
    assert [a.status for a in delivery.attempts] == [500, 503, 200]
    assert delivery.attempts[0].fault == "The answer was 500."
    assert (delivery.state, delivery.next_try_at) == ("delivered", None)


def test_delays_grow_to_most_of_a_day_and_are_not_in_step() -> None:
    waits = [next_try(attempts) for attempts in range(1, len(RETRY_AFTER) + 1)]
    assert None not in waits
    assert next_try(len(RETRY_AFTER) + 1) is None
    assert sum(RETRY_AFTER, start=RETRY_AFTER[0] * 0).total_seconds() > 17 * 3600
    assert len({next_try(3) for _ in range(20)}) > 1


def test_an_address_that_fails_to_the_end_is_paused_and_can_be_resumed(post: Post) -> None:
    webhook = post.add()
    post.receiver.statuses = [500]
    post.announce("budget.alert", percent=50)
    for _ in range(len(RETRY_AFTER) + 1):
        assert post.deliver() == 1
        post.make_due()
    (failed,) = post.sent(webhook)
    assert failed.state == "failed"
    with post.workshop.sessions.begin() as session:
        paused = webhooks.get_webhook(session, post.project_id, webhook)
    assert paused.pause_reason == "An event failed 8 times. The last time: The answer was 500."
    post.announce("budget.alert", percent=80)
    assert post.deliver() == 0, "nothing is sent meanwhile"
    with pytest.raises(StateConflict):
        post.replay(webhook, failed)
    with post.workshop.sessions.begin() as session:
        webhooks.resume_webhook(session, post.project_id, webhook)
    post.receiver.statuses = [200]
    again = post.replay(webhook, failed)
    assert post.deliver() == 1
    assert again.event.id == failed.event.id
    assert post.receiver.received[-1].headers["webhook-id"] == f"evt_{failed.event.id}"
    told = select(AuditEntry.action).where(AuditEntry.action.like("webhook.%"))
    actions = [action for (action,) in post.workshop.rows(told.order_by(AuditEntry.id))]
    assert actions == ["webhook.create", "webhook.pause", "webhook.resume"]


def test_a_receiver_that_is_gone_is_asked_no_more(post: Post) -> None:
    webhook = post.add()
    post.receiver.statuses = [410]
    post.announce("budget.alert", percent=50)
    post.deliver()
    assert [d.state for d in post.sent(webhook)] == ["failed"]
    assert post.workshop.scalar(select(Webhook.pause_reason)) is not None


def test_what_a_dead_worker_had_begun_is_sent_by_another(post: Post) -> None:
    webhook = post.add()
    post.announce("budget.alert", percent=50)
    with post.workshop.sessions.begin() as session:
        deliveries.lay_out(session)
    with post.workshop.sessions.begin() as session:
        assert len(deliveries._claim(session)) == 1  # and the process dies here
    assert post.deliver() == 0, "for a minute it may still be at it"
    post.make_due()
    assert post.deliver() == 1
    assert [d.state for d in post.sent(webhook)] == ["delivered"]


def test_both_secrets_sign_for_a_day(post: Post) -> None:
    webhook, old = post.add(), post.secret
    with post.workshop.sessions.begin() as session:
        new = webhooks.rotate_secret(session, post.project_id, webhook)
    with post.workshop.sessions.begin() as session, pytest.raises(StateConflict):
        webhooks.rotate_secret(session, post.project_id, webhook)
    post.announce("budget.alert", percent=50)
    post.deliver()
    got = post.receiver.received[-1]
    for secret in (old, new):
        OpenAI(api_key="none").webhooks.verify_signature(
            got.body.decode(), got.headers, secret=secret
        )
    post.workshop.execute(update(Webhook).values(previous_secret_until=func.now()))
    post.announce("budget.alert", percent=80)
    post.deliver()
    got = post.receiver.received[-1]
    client = OpenAI(api_key="none")
    client.webhooks.verify_signature(got.body.decode(), got.headers, secret=new)
    with pytest.raises(ValueError, match="signature"):
        client.webhooks.verify_signature(got.body.decode(), got.headers, secret=old)


def test_a_test_goes_to_one_address(post: Post) -> None:
    asked, other = post.add("batch.failed"), post.add()
    with post.workshop.sessions.begin() as session:
        deliveries.send_test(session, post.project_id, asked)
    assert Ring(Bell.DELIVER) in post.workshop.rings
    assert post.deliver() == 1
    assert [d.event.kind for d in post.sent(asked)] == ["webhook.test"]
    assert post.sent(other) == []


def test_a_tick_rings_for_what_waits(post: Post) -> None:
    post.add()
    post.workshop.tick()
    assert Ring(Bell.DELIVER) not in post.workshop.rings
    post.announce("budget.alert", percent=50)
    post.workshop.tick()
    assert Ring(Bell.DELIVER) in post.workshop.rings


def test_many_events_go_in_several_rounds(post: Post) -> None:
    webhook = post.add()
    for percent in range(20):
        post.announce("budget.alert", percent=percent)
    assert post.deliver() == 20
    assert {d.state for d in post.sent(webhook)} == {"delivered"}


def test_a_removed_address_takes_what_waits_with_it(post: Post) -> None:
    webhook = post.add()
    post.announce("budget.alert", percent=50)
    with post.workshop.sessions.begin() as session:
        deliveries.lay_out(session)
        webhooks.delete_webhook(session, post.project_id, webhook)
    assert post.deliver() == 0
    with pytest.raises(NotFound):
        post.sent(webhook)


def test_what_cannot_be_an_address_is_refused(post: Post) -> None:
    cases = [
        (NewWebhook("https://example.org", ["batch.done"]), "events"),
        (NewWebhook("http://example.org/"), "url"),
        (NewWebhook("https://example.org", description="x" * 201), "description"),
    ]
    for new, param in cases:
        with post.workshop.sessions.begin() as session, pytest.raises(InvalidRequest) as caught:
            webhooks.create_webhook(session, post.project_id, new, ())
        assert caught.value.param == param
    for _ in range(MAX_WEBHOOKS):
        post.add()
    with pytest.raises(InvalidRequest, match="at most 20"):
        post.add()


def test_a_new_address_hears_nothing_of_what_was_before(post: Post) -> None:
    post.announce("budget.alert", percent=50)
    post.workshop.tick()
    assert Ring(Bell.DELIVER) not in post.workshop.rings, "nobody listens"
    webhook = post.add()
    post.announce("budget.alert", percent=80)
    assert post.deliver() == 1
    assert [d.event.payload for d in post.sent(webhook)] == [{"percent": 80}]
