"""Webhooks over the API and on their pages: added, tried, renewed, replayed, removed."""

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from visitor import Visitor

from runner.config import Settings
from runner.runtime import Runtime
from runner.services.deliveries import deliver_events

sys.path.append(str(Path(__file__).parents[1] / "runner"))
from receiver import Receiver, receiving  # noqa: E402  (it lies beside the runner's tests)


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"places": ("http://127.0.0.1",)})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


def test_a_webhook_from_first_to_last(
    api: FlaskClient, runtime: Runtime, receiver: Receiver
) -> None:
    made = api.post("/api/webhooks", json={"url": receiver.url, "events": ["batch.failed"]})
    webhook = made.get_json()
    assert webhook["secret"].startswith("whsec_")
    path = f"/api/webhooks/{webhook['id']}"
    assert "secret" not in api.get(path).get_json()
    assert [one["id"] for one in api.get("/api/webhooks").get_json()["data"]] == [webhook["id"]]

    sent = api.post(f"{path}/test").get_json()
    assert (sent["event"], sent["state"], sent["attempts"]) == ("webhook.test", "waiting", [])
    assert api.post(f"{path}/deliveries/{sent['id']}/replay").status_code == 400
    deliver_events(runtime.sessions, runtime.settings.webhook_hosts)
    (delivery,) = api.get(f"{path}/deliveries?limit=5").get_json()["data"]
    assert (delivery["state"], delivery["attempts"][0]["status"]) == ("delivered", 200)
    again = api.post(f"{path}/deliveries/{sent['id']}/replay").get_json()
    assert again["event_id"] == sent["event_id"]

    renewed = api.post(f"{path}/rotate").get_json()
    assert renewed["secret"] != webhook["secret"]
    assert renewed["previous_secret_until"] is not None
    assert api.post(f"{path}/rotate").get_json()["code"] == "state_conflict"
    assert api.post(f"{path}/resume").get_json()["paused_at"] is None
    assert api.delete(path).get_json()["deleted"] is True
    assert api.get(path).status_code == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "url"),
        ({"url": "http://example.org/"}, "url"),
        ({"url": "https://10.0.0.1/"}, "url"),
        ({"url": "https://example.org/", "events": ["batch.done"]}, "events"),
        ({"url": "https://example.org/", "secret": "mine"}, "secret"),
    ],
)
def test_a_bad_webhook_is_refused_by_name(
    api: FlaskClient, body: dict[str, object], param: str
) -> None:
    answer = api.post("/api/webhooks", json=body)
    assert (answer.status_code, answer.get_json()["param"]) == (400, param)


def test_the_pages_do_the_same(
    sign_in: Callable[[str], Visitor], api_key: str, runtime: Runtime, receiver: Receiver
) -> None:
    visitor = sign_in(api_key)
    empty = visitor.get("/webhooks").text
    assert "No webhook yet" in empty
    assert "batch.completed" in empty
    shown = visitor.post("/webhooks", url=receiver.url, event="job.paused").text
    assert "whsec_" in shown
    path = re.search(r"/webhooks/webhook_\w+", shown)
    assert path is not None
    assert "whsec_" not in visitor.get(path[0]).text
    assert visitor.post(f"{path[0]}/test").status_code == 303
    deliver_events(runtime.sessions, runtime.settings.webhook_hosts)
    page = visitor.get(path[0]).text
    assert "webhook.test" in page
    replay = re.search(r"/webhooks/webhook_\w+/deliveries/delivery_\w+/replay", page)
    assert replay is not None
    assert visitor.post(replay[0]).status_code == 303
    assert visitor.post(f"{path[0]}/explode").status_code == 404
    assert visitor.post(f"{path[0]}/delete").status_code == 303
    assert "No webhook yet" in visitor.get("/webhooks").text
    assert visitor.post("/webhooks", url="http://10.0.0.1/").status_code == 400
