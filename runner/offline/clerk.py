"""The thread that does in a run what the CPU worker, the beat and the supervisor do elsewhere."""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from runner.config import Settings
from runner.db.session import SessionFactory
from runner.domain.errors import RunnerError
from runner.domain.rings import Bell, Ring
from runner.embedded import EmbeddedServices
from runner.offline.engine_process import EngineProcess
from runner.services import jobs, workers
from runner.services.closing import close_job
from runner.services.ingest import run_ingest
from runner.services.job_records import JobRecord
from runner.services.reconcile import reconcile

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25  # between looks at the engine's process
_MOST_DEATHS = 10  # without any line finished between them; halving a shard needs eight


class EngineFailed(RunnerError):
    """The engine cannot be kept running."""

    code = "engine_failed"


class Clerk:
    """Reads, closes and reconciles the one job; starts again what died, engine or database."""

    def __init__(
        self,
        settings: Settings,
        sessions: SessionFactory,
        services: EmbeddedServices,
        engine: EngineProcess,
        job: JobRecord,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._services = services
        self._engine = engine
        self._job = job
        self._rings: queue.SimpleQueue[Ring] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clerk", daemon=True)
        self._fault: Exception | None = None
        self._deaths = 0
        self._done = 0

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the present task."""
        self._stopping.set()
        self._thread.join()

    def hear(self, ring: Ring) -> None:
        """Take a ring (any thread): do it here, or pass it on to the engine."""
        if ring.bell in (Bell.WAKE, Bell.CANCEL):
            self._engine.send(ring)
        elif ring.bell is not Bell.COUNT:  # whoever runs a file at once asks for no estimate
            self._rings.put(ring)

    def check(self) -> None:
        """Raise what ended the clerk, if anything did."""
        if self._fault is not None:
            raise self._fault

    def _run(self) -> None:
        tick_at = 0.0
        try:
            while not self._stopping.is_set():
                self._guarded(self._mind_engine)
                if time.monotonic() >= tick_at:
                    self._guarded(self._tick)
                    tick_at = time.monotonic() + self._settings.tick_seconds
                self._guarded(self._answer_one)
        except Exception as error:  # told by ``check``, in the thread that can end the run
            self._fault = error

    def _answer_one(self) -> None:
        try:
            ring = self._rings.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            return
        if ring.job_id is None:
            return
        if ring.bell is Bell.INGEST:
            run_ingest(self._sessions, self._settings, ring.job_id)
        else:
            with self._sessions.begin() as session:
                close_job(session, ring.job_id)

    def _tick(self) -> None:
        with self._sessions.begin() as session:
            jobs.postpone_expiry(session, self._job.id)
        reconcile(self._sessions, self._settings)

    def _guarded(self, task: Callable[[], None]) -> None:
        """A database that died is started again; the task comes round again at a later tick."""
        try:
            task()
        except OperationalError as error:
            logger.warning("The database is away: %s", error, extra={"action": "database_away"})
            if not self._stopping.wait(_LOOK_SECONDS):
                self._services.start()

    def _mind_engine(self) -> None:
        """Free what a dead engine held and start another, unless that is hopeless."""
        if self._engine.alive() or self._stopping.is_set():
            return
        host, pid = socket.gethostname(), self._engine.pid
        with self._sessions.begin() as session:
            was_ready = workers.was_ready(session, host, pid)
            workers.report_dead(session, host, pid)
            totals = jobs.get_job(session, self._job.project_id, self._job.id).totals
        done = totals.succeeded + totals.failed
        self._deaths = self._deaths + 1 if done == self._done else 1
        self._done = done
        if not was_ready or self._deaths > _MOST_DEATHS:
            raise EngineFailed(
                f"The engine {'died again and again' if was_ready else 'could not start'}; its "
                f"log ends with:\n{self._engine.last_words()}"
            )
        logger.warning("The engine died; it is started again.", extra={"action": "engine_died"})
        self._engine.start()
