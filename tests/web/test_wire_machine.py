"""Any order of calls over the wire, against a simple model of files and batches.

Statuses only move forward and an end is final, lists show each thing once, what was deleted is
gone for good, downloads are what was handed in or what was counted, and nothing is a 500.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar

import pytest
from flask import Flask
from fuzzing import runs
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, update
from werkzeug.test import TestResponse
from workshop import Workshop, make_item

from runner.db.models import Job
from runner.db.session import create_session_factory
from runner.domain.ids import FILE_PREFIX, JOB_PREFIX, JobId, decode, encode, new_uuid
from runner.domain.states import MOVES, JobState
from runner.runtime import Runtime
from runner.services.keys import create_key

ANY = st.integers(0, 1_000_000)
Json = dict[str, Any]


def later_states() -> dict[str, set[str]]:
    """For each status those that may be seen after it, itself too."""
    found: dict[str, set[str]] = {}
    for state in JobState:
        reached, waiting = {state}, [state]
        while waiting:
            fresh = set(MOVES[waiting.pop()]) - reached
            reached |= fresh
            waiting += fresh
        found[state.value] = {each.value for each in reached}
    return found


LATER = later_states()
TERMINAL = {state for state, later in LATER.items() if later == {state}}


class Wire(RuleBasedStateMachine):
    """Two tenants of one installation; the calls are those of the first."""

    app: ClassVar[Flask]
    runtime: ClassVar[Runtime]
    shop: ClassVar[Workshop]
    pids: ClassVar[Iterator[int]] = itertools.count(1)
    seen: ClassVar[Counter[str]] = Counter()

    @initialize()
    def open(self) -> None:
        with self.runtime.transaction() as session:
            self.key, self.other_key = (
                create_key(session, f"tenant-{new_uuid()}")[1] for _ in range(2)
            )
        self.client = self.app.test_client()
        self.worker = self.shop.make_worker(pid=next(self.pids))
        self.inputs: dict[str, bytes] = {}
        self.gone: list[str] = []
        self.batches: dict[str, Json] = {}
        for number, (lines, bad) in enumerate([(2, set()), (5, {1})]):
            self.upload(lines, bad)
            self.create(number, skip=True, priority=0)
            self.ingest(number)

    def call(
        self, method: str, path: str, status: int = 200, key: str = "", **sent: object
    ) -> TestResponse:
        sent["environ_overrides"] = {"HTTP_AUTHORIZATION": f"Bearer {key or self.key}"}
        answer = self.client.open(path, method=method, **sent)
        assert answer.status_code == status, (method, path, answer.text)
        return answer

    def look(self, batch_id: str) -> Json:
        """A batch as it is now, held against how it was."""
        now = self.call("GET", f"/v1/batches/{batch_id}").get_json()
        return self.note(now)

    def note(self, now: Json) -> Json:
        before = self.batches.get(now["id"], now)
        assert now["status"] in LATER[before["status"]], (before["status"], now["status"])
        if before["status"] in TERMINAL:
            assert now == {**before, "expires_at": now["expires_at"]}
        for name in ("completed", "failed"):
            assert now["request_counts"][name] >= before["request_counts"][name]
        for name in ("output_file_id", "error_file_id"):
            assert before[name] is None or now[name] == before[name]
        if now["status"] == "completed":
            counts = now["request_counts"]
            assert counts["completed"] + counts["failed"] == counts["total"]
        self.seen[now["status"]] += 1
        self.batches[now["id"]] = now
        return now

    def one(self, names: Iterable[str], pick: int) -> str:
        every = list(names)
        return every[pick % len(every)]

    def job_id(self, batch_id: str) -> JobId:
        value = decode(JOB_PREFIX, batch_id)
        assert value is not None
        return JobId(value)

    @rule(lines=st.integers(0, 5), bad=st.sets(st.integers(0, 4)))
    def upload(self, lines: int, bad: set[int]) -> None:
        data = b"".join(
            (b"nonsense" if n in bad else make_item(f"line-{n}")) + b"\n" for n in range(lines)
        )
        form = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\n'
        form += b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
        sent = {"data": form + data + b"\r\n--x--\r\n"}
        kind = "multipart/form-data; boundary=x"
        file = self.call("POST", "/v1/files", content_type=kind, **sent).get_json()
        assert file["bytes"] == len(data)
        self.inputs[file["id"]] = data

    @precondition(lambda self: self.inputs or self.gone)
    @rule(pick=ANY, skip=st.booleans(), priority=st.integers(-1, 1))
    def create(self, pick: int, skip: bool, priority: int) -> None:
        file_id = self.one([*self.inputs, *self.gone], pick)
        body = {
            "input_file_id": file_id,
            "endpoint": "/v1/chat/completions",
            "completion_window": "24h",
            "on_invalid": "skip" if skip else "fail",
            "priority": priority,
        }
        if file_id in self.gone:
            error = self.call("POST", "/v1/batches", 400, json=body).get_json()["error"]
            assert error["param"] == "input_file_id"
            return
        batch = self.call("POST", "/v1/batches", json=body).get_json()
        assert batch["status"] == "validating"
        assert batch["id"] not in self.batches
        self.note(batch)

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def retrieve(self, pick: int) -> None:
        self.look(self.one(self.batches, pick))

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def cancel(self, pick: int) -> None:
        batch_id = self.one(self.batches, pick)
        if self.look(batch_id)["status"] in TERMINAL:
            error = self.call("POST", f"/v1/batches/{batch_id}/cancel", 400).get_json()["error"]
            assert error["code"] == "state_conflict"
        else:
            batch = self.call("POST", f"/v1/batches/{batch_id}/cancel").get_json()
            assert self.note(batch)["status"] == "cancelling"

    @precondition(lambda self: self.inputs)
    @rule(pick=ANY)
    def delete(self, pick: int) -> None:
        file_id = self.one(self.inputs, pick)
        self.call("DELETE", f"/v1/files/{file_id}")
        del self.inputs[file_id]
        self.gone.append(file_id)

    @precondition(lambda self: self.gone)
    @rule(pick=ANY)
    def miss(self, pick: int) -> None:
        path = f"/v1/files/{self.one(self.gone, pick)}"
        for method, where in (("GET", path), ("DELETE", path), ("GET", f"{path}/content")):
            self.call(method, where, 404)
        self.call("GET", f"/v1/files?after={self.one(self.gone, pick)}", 404)

    @precondition(lambda self: self.inputs)
    @rule(pick=ANY, first=st.integers(0, 400), length=st.integers(1, 400))
    def download(self, pick: int, first: int, length: int) -> None:
        file_id = self.one(self.inputs, pick)
        data = self.inputs[file_id]
        path = f"/v1/files/{file_id}/content"
        assert self.call("GET", path).data == data
        asked = {"Range": f"bytes={first}-{first + length - 1}"}
        if first < len(data):
            part = self.call("GET", path, 206, headers=asked).data
            assert part == data[first : first + length]
        else:
            self.call("GET", path, 416, headers=asked)

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def save_results(self, pick: int) -> None:
        batch = self.look(self.one(self.batches, pick))
        names: list[str] = []
        for name in ("output_file_id", "error_file_id"):
            if batch[name] is not None:
                data = self.call("GET", f"/v1/files/{batch[name]}/content").data
                names += [json.loads(line)["id"] for line in data.split(b"\n")[:-1]]
        assert len(names) == len(set(names))
        if batch["status"] in TERMINAL - {"failed"}:
            assert len(names) == batch["request_counts"]["total"]

    @rule(limit=st.integers(1, 4))
    def list_batches(self, limit: int) -> None:
        found = self.walk(f"/v1/batches?limit={limit}")
        assert [each["id"] for each in found] == list(reversed(self.batches))
        for each in found:
            self.note(each)

    @rule(limit=st.integers(1, 4), order=st.sampled_from(["asc", "desc"]))
    def list_files(self, limit: int, order: str) -> None:
        found = self.walk(f"/v1/files?limit={limit}&order={order}&purpose=batch")
        expected = list(self.inputs) if order == "asc" else list(reversed(self.inputs))
        assert [each["id"] for each in found] == expected

    def walk(self, path: str) -> list[Json]:
        """All pages of a list."""
        found: list[Json] = []
        after = ""
        for _ in range(100):
            page = self.call("GET", path + after).get_json()
            found += page["data"]
            if not page["has_more"]:
                return found
            assert page["last_id"] == page["data"][-1]["id"]
            after = f"&after={page['last_id']}"
        raise AssertionError("the list does not end")

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def another_tenant_sees_nothing(self, pick: int) -> None:
        batch_id = self.one(self.batches, pick)
        self.call("GET", f"/v1/batches/{batch_id}", 404, key=self.other_key)
        self.call("POST", f"/v1/batches/{batch_id}/cancel", 404, key=self.other_key)
        assert self.call("GET", "/v1/files", key=self.other_key).get_json()["data"] == []

    @rule()
    def ask_for_nothing(self) -> None:
        self.call("GET", f"/v1/batches/{encode(JOB_PREFIX, new_uuid())}", 404)
        self.call("DELETE", f"/v1/files/{encode(FILE_PREFIX, new_uuid())}", 404)

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def ingest(self, pick: int) -> None:
        batch_id = self.one(self.batches, pick)
        self.shop.ingest(self.job_id(batch_id))
        self.look(batch_id)

    @rule()
    def work(self) -> None:
        self.shop.run(self.worker, self.shop.claim(self.worker, shards=1))

    @rule()
    def close(self) -> None:
        self.shop.close_all()

    @precondition(lambda self: self.batches)
    @rule(pick=ANY)
    def expire(self, pick: int) -> None:
        job = self.job_id(self.one(self.batches, pick))
        self.shop.execute(update(Job).where(Job.id == job).values(expires_at=func.now()))
        self.shop.tick()

    def teardown(self) -> None:
        """Left alone, every batch comes to an end that its files bear out."""
        if not hasattr(self, "batches"):
            return
        for batch_id in self.batches:
            self.shop.ingest(self.job_id(batch_id))
        for _ in range(3):
            self.shop.tick()
            self.shop.drain(self.worker)
        for number, batch_id in enumerate(list(self.batches)):
            assert self.look(batch_id)["status"] in TERMINAL
            self.save_results(number)


@pytest.mark.slow
def test_any_order_of_calls_agrees_with_a_simple_model(app: Flask, runtime: Runtime) -> None:
    url = str(runtime.settings.database_url)
    Wire.app, Wire.runtime, Wire.seen = app, runtime, Counter()
    sessions = create_session_factory(url)
    Wire.shop = Workshop(sessions, runtime.settings.model_copy(update={"shard_lines": 2}))
    try:
        run_state_machine_as_test(Wire, settings=runs(10, steps=25))
    finally:
        sessions.kw["bind"].dispose()
    # Else little was tested: every kind of end must have come up.
    assert TERMINAL | {"cancelling", "in_progress", "validating"} <= set(Wire.seen)
