"""Doorbells over the real broker, to a real Celery process, also after the broker forgot all."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import redis
from kombu import Consumer
from patience import PATIENCE, wait_until
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.celery_app import CPU_QUEUE, ENGINE_QUEUE, create_celery, send_ring
from runner.config import Settings
from runner.db.models import Worker
from runner.domain.ids import new_uuid
from runner.domain.rings import Bell, Ring
from runner.runtime import Runtime, open_runtime


@pytest.fixture
def runtime(settings: Settings, broker_url: str) -> Iterator[Runtime]:
    runtime = open_runtime(settings.model_copy(update={"broker_url": broker_url}))
    yield runtime
    runtime.close()


@pytest.fixture
def shop(runtime: Runtime) -> Workshop:
    """A workshop whose rings go out over the broker."""
    return Workshop(runtime.sessions, runtime.settings)


class CeleryProcess:
    """One Celery worker: both queues and an engine, so that both kinds of rings reach it."""

    def __init__(self, runtime: Runtime, log: Path) -> None:
        self._log = log
        self.celery = runtime.celery
        settings = runtime.settings
        words = ("-m", "celery", "-A", "runner.tasks", "worker", "--engine", "--pool", "threads")
        more = ("--concurrency", "2", "-Q", f"{CPU_QUEUE},{ENGINE_QUEUE}", "-n", "one@%h")
        quiet = ("--without-gossip", "--without-mingle")
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                (sys.executable, *words, *more, *quiet),
                env=os.environ
                | {
                    "DATABASE_URL": str(settings.database_url),
                    "BROKER_URL": str(settings.broker_url),
                    "TOKENMILL_DATA_DIR": str(settings.data_dir),
                    "TOKENMILL_GRACE_SECONDS": "1",
                },
                stdout=output,
                stderr=output,
            )

    def ran(self, bell: Bell) -> int:
        """How often it has run the task of a bell."""
        return sum(
            f"Task tokenmill.{bell}[" in line and "succeeded" in line
            for line in self._log.read_text().splitlines()
        )

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(PATIENCE)


@pytest.fixture
def celery_process(runtime: Runtime, shop: Workshop, tmp_path: Path) -> Iterator[CeleryProcess]:
    process = CeleryProcess(runtime, tmp_path / "celery.log")
    try:
        ready = select(func.count()).where(Worker.state == "ready")
        wait_until(lambda: process.process.poll() is None and shop.scalar(ready))
        wait_until(lambda: "ready." in (tmp_path / "celery.log").read_text())
        yield process
    finally:
        if process.process.poll() is None:
            process.process.kill()
            process.process.wait()


def test_every_setting_that_correctness_rests_on_is_set(broker_url: str) -> None:
    conf = create_celery(broker_url, tick_seconds=5.0).conf
    assert (conf.task_serializer, conf.result_serializer) == ("json", "json")
    assert list(conf.accept_content) == ["json"]
    assert conf.task_acks_late is False
    assert conf.task_ignore_result is True
    assert conf.result_backend is None
    assert conf.worker_disable_prefetch is True
    assert conf.worker_send_task_events is False
    assert conf.task_create_missing_queues is False
    assert conf.broker_connection_max_retries is None
    assert conf.broker_connection_retry_on_startup is True
    assert {entry["task"] for entry in conf.beat_schedule.values()} == {
        "tokenmill.tick",
        "tokenmill.keep_house",
    }
    for entry in conf.beat_schedule.values():
        assert entry["options"] == {"queue": CPU_QUEUE, "expires": entry["schedule"]}
    options = conf.broker_transport_options
    assert options["global_keyprefix"] == "tokenmill:"
    assert options["socket_keepalive"] is True
    assert {"health_check_interval", "socket_timeout", "socket_connect_timeout"} <= set(options)


def test_a_ring_carries_ids_only_and_expires(runtime: Runtime, shop: Workshop) -> None:
    job_id = shop.make_job([b"my secret prompt"], ingested=False)
    with redis.Redis.from_url(str(runtime.settings.broker_url)) as client:
        (message,) = client.lrange("tokenmill:cpu", 0, -1)
    envelope = json.loads(message)
    arguments, _, _ = json.loads(base64.b64decode(envelope["body"]))
    assert arguments == [str(job_id)]
    assert b"secret" not in message
    assert envelope["content-type"] == "application/json"
    assert envelope["headers"]["expires"] is not None


def test_every_engine_hears_a_ring_and_none_is_left_behind(
    runtime: Runtime, broker_url: str
) -> None:
    heard: list[tuple[int, str]] = []
    with ExitStack() as stack:
        connections = []
        for number in (1, 2):
            app = create_celery(broker_url)
            app.amqp.queues.select([ENGINE_QUEUE])
            connection = stack.enter_context(app.connection_for_read())
            stack.enter_context(
                Consumer(
                    connection,
                    queues=list(app.amqp.queues.consume_from.values()),
                    callbacks=[lambda body, _, number=number: heard.append((number, body[0]))],
                    accept=["json"],
                    no_ack=True,
                )
            )
            connections.append(connection)
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.2)
        job_id = new_uuid()
        for bell, arguments in ((Bell.WAKE, []), (Bell.CANCEL, [str(job_id)]), (Bell.PROFILE, [])):
            heard.clear()
            send_ring(runtime.celery, Ring(bell, job_id if arguments else None))
            for connection in connections:
                connection.drain_events(timeout=PATIENCE)
            assert sorted(heard) == [(1, arguments), (2, arguments)]
    with redis.Redis.from_url(broker_url) as client:
        assert [key for key in client.scan_iter() if client.type(key) == b"list"] == []


def test_a_broker_that_is_gone_costs_the_caller_little_and_no_job(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[object] = []
    connect = redis.Connection._connect

    def note(connection: redis.Connection) -> object:
        tries.append(connection)
        return connect(connection)

    monkeypatch.setattr(redis.Connection, "_connect", note)
    runtime = open_runtime(settings.model_copy(update={"broker_url": "redis://127.0.0.1:1/0"}))
    try:
        shop = Workshop(runtime.sessions, runtime.settings)
        job_id = shop.make_job(3, ingested=False)
        assert shop.job(job_id).state == "validating"
        wait_until(lambda: "A doorbell was not delivered" in caplog.text)
        assert len(tries) == 2, "it is tried again at once, not for seconds"
    finally:
        runtime.close()


def test_rings_still_arrive_after_the_broker_has_forgotten_everything(
    shop: Workshop, celery_process: CeleryProcess, broker_url: str
) -> None:
    # Nothing ticks here: only the doorbell can have a file read and a job closed.
    for forgets in (True, False):
        before = {bell: celery_process.ran(bell) for bell in Bell}

        def ran_again(bell: Bell, before: dict[Bell, int] = before) -> bool:
            return celery_process.ran(bell) > before[bell]

        job_id = shop.make_job(10, ingested=False)
        wait_until(lambda job_id=job_id: shop.job(job_id).state == "completed")  # type: ignore[misc]
        assert shop.job(job_id).totals.succeeded == 10
        for bell in (Bell.INGEST, Bell.WAKE, Bell.FINALISE):
            wait_until(partial(ran_again, bell))
        send_ring(celery_process.celery, Ring(Bell.CANCEL, job_id))
        wait_until(partial(ran_again, Bell.CANCEL))
        if forgets:
            with redis.Redis.from_url(broker_url) as client:
                client.flushall()
    assert celery_process.stop() == 0
    assert shop.scalar(select(Worker.state)) == "ended"


def test_a_worker_asked_through_the_database_ends_its_process_in_order(
    shop: Workshop, celery_process: CeleryProcess
) -> None:
    shop.execute(update(Worker).values(state="draining"))
    assert celery_process.process.wait(PATIENCE) == 0
    assert shop.scalar(select(Worker.state)) == "ended"
