"""One model's stay in an engine worker: it is loaded, works, and is let go."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from runner.db.session import OUTAGES
from runner.inference import open_backend
from runner.inference.backend import Backend
from runner.services.models import ModelRecord
from runner.services.workers import beat, mark_ready
from runner.worker.context import WorkerContext
from runner.worker.energy import find_meter
from runner.worker.feeder import Feeder
from runner.worker.keeper import Keeper
from runner.worker.lines import Closed
from runner.worker.model_watch import ModelWatch
from runner.worker.patience import Patience, persist
from runner.worker.profile_desk import ProfileDesk
from runner.worker.step_loop import StepLoop
from runner.worker.threads import start_thread
from runner.worker.time_sheet import now_us
from runner.worker.writer import Writer

logger = logging.getLogger(__name__)

_BEAT_WHILE_LOADING_SECONDS = 5.0
_LOOK_SECONDS = 0.05


class ResidentModel:
    """A model in this worker. ``ending`` is set when the whole process ends, not when the model
    makes room for another."""

    def __init__(self, context: WorkerContext, model: ModelRecord, ending: threading.Event) -> None:
        self._context = context
        self._model = model
        self._ending = ending

    def run(self, watch: ModelWatch, drain: Callable[[str], None]) -> dict[str, float]:
        """Load it, work until the worker is to take no more, and free its memory.

        Returns:
            The backend's last figures.
        """
        context = self._context
        backend = self._load()
        context.power.watch(find_meter(backend.gpu_uuid))
        with context.metrics.shown(backend.stats, context.times.read) as address:
            self._announce(backend, address)
            self._work(backend, watch, drain)
        stats = dict(backend.stats())
        backend.close()
        return stats

    def _load(self) -> Backend:
        """Load the model while telling the database that this worker lives."""
        context = self._context
        loaded = threading.Event()
        start_thread("load-beat", lambda: self._beat_until(loaded))
        started = now_us()
        try:
            backend = open_backend(self._model.path, context.settings)
        finally:
            loaded.set()
        context.times.add(load_us=now_us() - started)
        return backend

    def _beat_until(self, loaded: threading.Event) -> None:
        # An outage while the model loads is no reason to load it twice.
        context = self._context
        while not loaded.wait(_BEAT_WHILE_LOADING_SECONDS):
            with suppress(*OUTAGES), context.sessions.begin() as session:
                beat(session, context.worker_id, context.times.read(), {})

    def _announce(self, backend: Backend, metrics_address: str) -> None:
        description = f"{backend.description}, metrics: {metrics_address}"
        persist(
            self._context.sessions,
            lambda session: mark_ready(
                session, self._context.worker_id, description, backend.rows, backend.lane
            ),
            Patience("The start", "start_failed"),
            self._ending.is_set,
        )
        logger.info("Ready: %s", description, extra={"action": "worker_ready"})
        if backend.lane.reason:
            logger.warning(
                "The model runs in the slower %s lane: %s.",
                backend.lane.name,
                backend.lane.reason,
                extra={"action": "worker_lane"},
            )

    def _work(self, backend: Backend, watch: ModelWatch, drain: Callable[[str], None]) -> None:
        """Work until asked to take no more, then finish or give back everything."""
        context = self._context
        loop = StepLoop(backend, context.book, context.ended, context.times)
        feeder = Feeder(context, backend, loop)
        keeper = Keeper(context, backend, feeder, loop, watch, drain)
        stepping = start_thread("step-loop", loop.run)
        writing = start_thread("writer", Writer(context, loop).run)
        keeping = start_thread("keeper", keeper.run)
        desk = ProfileDesk(context, loop)
        profiling = start_thread("profile-desk", desk.run)
        feeding = start_thread("feeder", feeder.run)
        feeding.join()
        self._finish_what_ends(loop)
        loop.revoke(context.book.drop(context.book.keys()), release=True)
        desk.stop()
        loop.stop()
        stepping.join()
        profiling.join()
        context.ended.put(Closed())
        writing.join()
        keeper.stop()
        keeping.join()

    def _finish_what_ends(self, loop: StepLoop) -> None:
        """Give back what has not begun, and let running lines end; once the process itself ends,
        only while its grace time lasts."""
        context = self._context
        loop.hold()
        loop.revoke(context.book.drop_unstarted(above=sys.maxsize), release=True)
        deadline: float | None = None
        while not loop.is_empty:
            if deadline is None and self._ending.is_set():
                deadline = time.monotonic() + context.settings.grace_seconds
            if deadline is not None and time.monotonic() >= deadline:
                return
            time.sleep(_LOOK_SECONDS)
