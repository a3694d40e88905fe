"""The engine worker as a whole: it loads a model, runs its threads, drains, and dies in order."""

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.outages import cause_of
from runner.db.session import OUTAGES, SessionFactory
from runner.inference import open_backend
from runner.inference.backend import Backend
from runner.services.models import ModelRecord, model_to_serve
from runner.services.worker_time import keep_waste
from runner.services.workers import NewWorker, beat, end_worker, mark_ready, register_worker
from runner.worker.context import WorkerContext
from runner.worker.energy import find_meter
from runner.worker.feeder import Feeder
from runner.worker.keeper import Keeper
from runner.worker.lines import Closed
from runner.worker.metrics import WorkerMetrics
from runner.worker.patience import Patience, persist
from runner.worker.profile_desk import ProfileDesk
from runner.worker.step_loop import StepLoop
from runner.worker.time_sheet import now_us
from runner.worker.writer import Writer

T = TypeVar("T")

logger = logging.getLogger(__name__)

FAULT_STATUS = 70  # the exit status of a worker whose engine or bookkeeping failed
_MODEL_SECONDS = 2.0  # between looks while no model is registered
_BEAT_WHILE_LOADING_SECONDS = 5.0
_LOOK_SECONDS = 0.05
_LAST_WORD_SECONDS = 3.0  # the end of a worker is not worth waiting for the database


class EngineWorker:
    """One process's engine with its feeder, step loop, writer and keeper.

    ``on_drained`` is called once the worker has ended, so that the process can end too when the
    worker did so by itself (asked through the database, or to make room for another model).
    """

    def __init__(
        self,
        settings: Settings,
        sessions: SessionFactory,
        model_name: str | None,
        on_drained: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._model_name = model_name
        self._on_drained = on_drained
        self._wake = threading.Event()
        self._look = threading.Event()
        self._profile = threading.Event()
        self._draining = threading.Event()
        self._ended = threading.Event()

    def start(self) -> None:
        """Begin to load and work, in threads of this process."""
        self._thread("engine-worker", self._run)

    def wake(self) -> None:
        """There may be work (a doorbell), and it may be more urgent than what is in hand."""
        self._wake.set()
        self._look.set()

    def look(self) -> None:
        """Leases may have been revoked (a doorbell)."""
        self._look.set()
        self._wake.set()

    def profile(self) -> None:
        """Somebody may have asked for a profile (a doorbell)."""
        self._profile.set()

    def drain(self, reason: str = "terminated") -> None:
        """Take no more; finish what ends within the grace time, give back the rest."""
        if not self._draining.is_set():
            logger.info("Draining: %s.", reason, extra={"action": "drain"})
        self._draining.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until a draining worker has given back everything."""
        self._ended.wait()

    def _run(self) -> None:
        try:
            model = self._wait_for_model()
            if model is not None:
                self._work(model)
        except OUTAGES as error:
            # Raised only while draining: what is missing in the database is found by others.
            logger.warning(
                "Ended without the database: %s", cause_of(error), extra={"action": "lone_end"}
            )
        self._ended.set()
        self._on_drained()

    def _wait_for_model(self) -> ModelRecord | None:
        patience = Patience("Looking for a model", "look_failed")
        while not self._draining.is_set():
            pause = _MODEL_SECONDS
            try:
                with self._sessions() as session:
                    model = model_to_serve(session, self._model_name)
            except OUTAGES as error:
                pause = patience.pause_after(error)
            else:
                patience.passed()
                if model is not None:
                    return model
            self._draining.wait(pause)
        return None

    def _work(self, model: ModelRecord) -> None:
        context = self._register(model)
        backend = self._load(context, model)
        context.power.watch(find_meter(backend.gpu_uuid))
        with context.metrics.shown(backend.stats, context.times.read) as address:
            self._announce(context, backend, address)
            self._run_threads(context, backend)
        give_up_at = time.monotonic() + _LAST_WORD_SECONDS

        context.times.settle()

        def end(session: Session) -> None:
            beat(session, context.worker_id, context.times.read(), dict(backend.stats()))
            keep_waste(session, context.worker_id, context.times.changed_waste())
            end_worker(session, context.worker_id, "drained")

        patience = Patience("The end", "end_failed")
        persist(self._sessions, end, patience, lambda: time.monotonic() > give_up_at)

    def _run_threads(self, context: WorkerContext, backend: Backend) -> None:
        """Work until asked to drain, then finish or give back everything."""
        loop = StepLoop(backend, context.book, context.ended, context.times)
        feeder = Feeder(context, backend, loop)
        keeper = Keeper(context, backend, feeder, loop, self.drain)
        stepping = self._thread("step-loop", loop.run)
        writing = self._thread("writer", Writer(context, loop).run)
        keeping = self._thread("keeper", keeper.run)
        desk = ProfileDesk(context, loop)
        profiling = self._thread("profile-desk", desk.run)
        feeding = self._thread("feeder", feeder.run)
        feeding.join()
        self._finish_what_ends(context, loop)
        loop.revoke(context.book.drop(context.book.keys()), release=True)
        desk.stop()
        loop.stop()
        stepping.join()
        profiling.join()
        context.ended.put(Closed())
        writing.join()
        keeper.stop()
        keeping.join()

    def _register(self, model: ModelRecord) -> WorkerContext:
        new = NewWorker("engine", socket.gethostname(), os.getpid(), model.id)
        # Repeated after a lost answer it leaves a row that nobody uses, which is buried as silent.
        worker_id = self._persist(lambda session: register_worker(session, new))
        return WorkerContext(
            self._settings,
            self._sessions,
            worker_id,
            model.id,
            WorkerMetrics(model.name),
            wake=self._wake,
            look=self._look,
            profile=self._profile,
            draining=self._draining,
        )

    def _load(self, context: WorkerContext, model: ModelRecord) -> Backend:
        """Load the model while telling the database that this worker lives."""
        loaded = threading.Event()
        self._thread("load-beat", lambda: self._beat_until(context, loaded))
        started = now_us()
        try:
            backend = open_backend(model.path, context.settings)
        finally:
            loaded.set()
        context.times.add(load_us=now_us() - started)
        return backend

    def _announce(self, context: WorkerContext, backend: Backend, metrics_address: str) -> None:
        description = f"{backend.description}, metrics: {metrics_address}"
        self._persist(
            lambda session: mark_ready(
                session, context.worker_id, description, backend.rows, backend.lane
            )
        )
        logger.info("Ready: %s", description, extra={"action": "worker_ready"})
        if backend.lane.reason:
            logger.warning(
                "The model runs in the slower %s lane: %s.",
                backend.lane.name,
                backend.lane.reason,
                extra={"action": "worker_lane"},
            )

    def _beat_until(self, context: WorkerContext, loaded: threading.Event) -> None:
        # An outage while the model loads is no reason to load it twice.
        while not loaded.wait(_BEAT_WHILE_LOADING_SECONDS):
            with suppress(*OUTAGES), context.sessions.begin() as session:
                beat(session, context.worker_id, context.times.read(), {})

    def _finish_what_ends(self, context: WorkerContext, loop: StepLoop) -> None:
        """Give back what has not begun; let running lines end while the grace time lasts."""
        loop.hold()
        loop.revoke(context.book.drop_unstarted(above=sys.maxsize), release=True)
        deadline = time.monotonic() + context.settings.grace_seconds
        while not loop.is_empty and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)

    def _persist(self, transaction: Callable[[Session], T]) -> T:
        """Wait for the database for as long as this worker is wanted."""
        patience = Patience("The start", "start_failed")
        return persist(self._sessions, transaction, patience, self._draining.is_set)

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=_run_or_die, args=(work,), name=name, daemon=True)
        thread.start()
        return thread


def _run_or_die(work: Callable[[], None]) -> None:
    """A fault that is not one line's own ends the process; whoever supervises starts it again.

    Leases are not given back: what was running may be what did it (see ``services.recovery``).
    """
    try:
        work()
    except Exception:
        logger.critical("The worker cannot go on.", exc_info=True, extra={"action": "worker_fault"})
        logging.shutdown()
        os._exit(FAULT_STATUS)
