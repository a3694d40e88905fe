"""``/api/schedules``: made, changed and run by programs, and every fault told by its parameter."""

from collections.abc import Callable
from typing import Any

import pytest
from flask.testing import FlaskClient

from runner.runtime import Runtime
from runner.services.run_starts import start_runs

Upload = Callable[..., dict[str, Any]]
BODY = {"name": "nightly", "cron": "30 2 * * *", "endpoint": "/v1/chat/completions"}


@pytest.fixture
def make(api: FlaskClient, upload: Upload) -> Callable[..., dict[str, Any]]:
    """Makes a schedule; a field of None is left out."""

    def make(**fields: object) -> dict[str, Any]:
        body = BODY | {"input_file_id": upload()["id"]} | fields
        sent = {name: value for name, value in body.items() if value is not None}
        answer = api.post("/api/schedules", json=sent)
        assert answer.status_code == 200, answer.text
        return answer.get_json()

    return make


def test_a_schedule_is_told_back_with_words_and_times(make: Callable[..., Any]) -> None:
    made = make(zone="Asia/Kathmandu", metadata={"a": "b"}, defaults={"model": "m"}, priority=3)
    assert made["cron_words"] == "At 02:30 every day"
    assert (made["catch_up"], made["overlap"], made["on_invalid"]) == ("latest", "skip", "skip")
    assert (made["metadata"], made["defaults"], made["priority"]) == ({"a": "b"}, {"model": "m"}, 3)
    assert len(made["next_runs"]) == 5
    assert all(at.endswith("T20:45:00+00:00") for at in made["next_runs"])
    assert (made["status"], made["last_run"], made["problem"]) == ("active", None, None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"cron": "* * * *"}, "cron"),
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"zone": "Mars/Olympus"}, "zone"),
        ({"zone": "../../etc/passwd"}, "zone"),
        ({"name": ""}, "name"),
        ({"name": " a"}, "name"),
        ({"name": "a\0b"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"endpoint": "/v1/x"}, "endpoint"),
        ({"catch_up": "some"}, "catch_up"),
        ({"overlap": "some"}, "overlap"),
        ({"completion_window": "1y"}, "completion_window"),
        ({"priority": 1000}, "priority"),
        ({"on_invalid": "x"}, "on_invalid"),
        ({"metadata": {"a": "x" * 600}}, "metadata"),
        ({"defaults": {"stream": True}}, "defaults.stream"),
        ({"input_tag": "a"}, "input_tag"),
        ({"input_file_id": None}, "input_file_id"),
        ({"input_file_id": "file-x"}, "input_file_id"),
        ({"input_file_id": None, "input_tag": "a b"}, "input_tag"),
        ({"input_file_id": None, "input_path": "/etc/passwd"}, "input_path"),
        ({"output_path": "http://host/a"}, "output_path"),
        ({"max_cost": "much"}, "max_cost"),
        ({"on_budget": "x"}, "on_budget"),
        ({"dedupe": "x"}, "dedupe"),
        ({"run_hours": "25:00-26:00"}, "run_hours"),
        ({"tags": ["a", "a"]}, "tags"),
        ({"sometimes": True}, "sometimes"),
    ],
)
def test_a_field_that_is_wrong_is_named(
    fields: dict[str, Any], param: str, api: FlaskClient, upload: Upload
) -> None:
    body = BODY | {"input_file_id": upload()["id"]} | fields
    sent = {name: value for name, value in body.items() if value is not None}
    answer = api.post("/api/schedules", json=sent)
    assert answer.status_code == 400, answer.text
    assert answer.mimetype == "application/problem+json"
    assert answer.get_json()["param"] == param
    assert api.get("/api/schedules").get_json()["data"] == []


def test_a_name_is_taken_once(api: FlaskClient, make: Callable[..., Any]) -> None:
    made = make()
    again = api.post("/api/schedules", json=BODY | {"input_tag": "a"})
    assert (again.status_code, again.get_json()["code"]) == (400, "state_conflict")
    assert api.delete(f"/api/schedules/{made['id']}").get_json()["deleted"] is True
    assert make()["id"] != made["id"]


def test_what_is_left_out_of_a_change_stays(api: FlaskClient, make: Callable[..., Any]) -> None:
    made = make(priority=3, metadata={"a": "b"})
    path = f"/api/schedules/{made['id']}"
    changed = api.patch(path, json={"cron": "0 9 * * 1-5", "metadata": None}).get_json()
    assert changed["cron_words"] == "At 09:00 on Monday through Friday"
    assert (changed["priority"], changed["metadata"]) == (3, None)
    assert changed["input_file_id"] == made["input_file_id"]
    swapped = api.patch(path, json={"input_file_id": None, "input_tag": "nightly"}).get_json()
    assert (swapped["input_file_id"], swapped["input_tag"]) == (None, "nightly")
    for wrong in ({"input_tag": None}, {"cron": ""}, {"name": None}, {"x": 1}):
        assert api.patch(path, json=wrong).status_code == 400, wrong
    assert api.get(path).get_json() == swapped


def test_a_run_by_hand_becomes_a_batch_that_names_its_schedule(
    api: FlaskClient, make: Callable[..., Any], runtime: Runtime
) -> None:
    made = make()
    path = f"/api/schedules/{made['id']}"
    assert api.post(f"{path}/pause").get_json()["status"] == "paused"
    asked = api.post(f"{path}/run").get_json()
    assert (asked["status"], asked["trigger"], asked["batch_id"]) == ("waiting", "manual", None)
    start_runs(runtime.sessions, runtime.settings)
    (run,) = api.get(f"{path}/runs").get_json()["data"]
    assert (run["id"], run["status"], run["outcome"]) == (asked["id"], "started", "validating")
    assert run["cost"]["billed"] == "0.000000000"
    assert api.get(f"/v1/batches/{run['batch_id']}").get_json()["schedule_id"] == made["id"]
    resumed = api.post(f"{path}/resume").get_json()
    assert (resumed["status"], resumed["last_run"]["id"]) == ("active", asked["id"])
    assert api.get(f"{path}/runs?after={run['id']}").get_json()["data"] == []
    for query, status in (("limit=0", 400), ("after=x", 404), ("after=run_" + "0" * 26, 200)):
        assert api.get(f"{path}/runs?{query}").status_code == status, query


def test_files_are_found_by_the_tags_that_they_were_given(api: FlaskClient, upload: Upload) -> None:
    first, second = upload()["id"], upload()["id"]
    tagged = api.patch(f"/api/files/{first}", json={"tags": ["nightly", "a", "a"]}).get_json()
    assert tagged["tags"] == ["a", "nightly"]
    found = api.get("/v1/files?tag=nightly").get_json()["data"]
    assert [file["id"] for file in found] == [first]
    assert "tags" not in api.get(f"/v1/files/{second}").get_json()
    many = [f"tag-{n}" for n in range(17)]
    for tags in ([""], ["a b"], many, "a", ["a\0"], ["x" * 65], None):
        wrong = {} if tags is None else {"tags": tags}
        assert api.patch(f"/api/files/{first}", json=wrong).status_code == 400, wrong
    assert api.patch(f"/api/files/{first}", json={"tags": []}).status_code == 200
    assert api.get("/v1/files?tag=nightly").get_json()["data"] == []
