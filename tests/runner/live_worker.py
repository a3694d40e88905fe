"""An engine worker on the stub, alive in threads of the test, and waiting for what it does."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace

import pytest
from patience import PATIENCE, wait_until
from sqlalchemy import select
from workshop import Workshop

from runner.config import Settings
from runner.db.models import Worker
from runner.domain.ids import WorkerId
from runner.domain.rings import Bell, Ring
from runner.worker.engine_worker import EngineWorker

MakeWorkshop = Callable[..., Workshop]


@dataclass
class LiveWorker:
    """One engine worker of this process, and its end."""

    worker: EngineWorker
    workshop: Workshop
    known: frozenset[WorkerId]
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def id(self) -> WorkerId:
        """Its row; there is one once it has a model."""

        def own() -> list[WorkerId]:
            found = self.workshop.rows(select(Worker.id).where(Worker.pid == os.getpid()))
            return [row.id for row in found if row.id not in self.known]

        wait_until(own)
        return own()[0]

    def stop(self) -> None:
        self.worker.drain()
        assert self.ended.wait(PATIENCE)


StartWorker = Callable[[Workshop], LiveWorker]


def hear(worker: EngineWorker, ring: Ring) -> None:
    """What the Celery tasks of an engine worker do."""
    if ring.bell is Bell.WAKE:
        worker.wake()
    if ring.bell is Bell.CANCEL:
        worker.look()
    if ring.bell is Bell.PROFILE:
        worker.profile()


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Once it is set, no load and no step of the stub takes any time.

    So a test can have steps so long that nothing ends under its hands, and need not wait for them.
    """
    hurry = threading.Event()
    clock = SimpleNamespace(sleep=hurry.wait, perf_counter_ns=time.perf_counter_ns)
    monkeypatch.setattr("runner.inference.stub.time", clock)
    return hurry


@pytest.fixture
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has workers beat at once, with leases so long that none lapses while the machine stands."""
    monkeypatch.setattr(Settings, "heartbeat_seconds", 0.25)


@pytest.fixture
def start_worker(monkeypatch: pytest.MonkeyPatch, hurry: threading.Event) -> Iterator[StartWorker]:
    """Starts workers; all are stopped at the end, and none may have ended the process."""
    started: list[LiveWorker] = []
    faults: list[int] = []

    def fault(status: int) -> None:
        faults.append(status)
        raise SystemExit(status)

    def start(workshop: Workshop) -> LiveWorker:
        ended = threading.Event()
        worker = EngineWorker(workshop.settings, workshop.sessions, (), ended.set)
        known = frozenset(row.id for row in workshop.rows(select(Worker.id)))
        live = LiveWorker(worker, workshop, known, ended)
        started.append(live)
        workshop.listeners.append(partial(hear, worker))
        worker.start()
        return live

    monkeypatch.setattr(os, "_exit", fault)
    yield start
    hurry.set()
    for live in started:
        if not faults:
            live.stop()
    assert faults == []


def finish(workshop: Workshop, *job_ids: object, seconds: float = PATIENCE) -> None:
    """Wait for the jobs' ends, with ticks, and closing them as the doorbell would have it."""

    def ended() -> bool:
        workshop.tick()
        workshop.close_all()
        return all(workshop.job(job_id).state.is_terminal for job_id in job_ids)  # type: ignore[arg-type]

    wait_until(ended, seconds)


def settled(workshop: Workshop, job_id: object) -> int:
    """Lines of a job that have a result."""
    totals = workshop.job(job_id).totals  # type: ignore[arg-type]
    return totals.succeeded + totals.failed
