"""How an engine worker lives inside a Celery worker: a bootstep, so messages always get through."""

import os
import signal
from collections.abc import Sequence

from celery import bootsteps
from celery.worker import WorkController

from runner.worker.engine_worker import EngineWorker

# Of a statement: a small part of a lease, so that a hung database is noticed well before its end.
_PATIENCE_SECONDS = 15.0


class EngineStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Starts the engine worker beside the consumer when the command line has ``--engine``."""

    requires = {"celery.worker.components:Pool"}

    def __init__(
        self,
        parent: WorkController,
        engine: bool = False,
        model: Sequence[str] = (),
        **options: object,
    ) -> None:
        super().__init__(parent, **options)
        self.enabled = engine
        self._models = tuple(model)
        self._worker: EngineWorker | None = None
        self._stopping = False

    def start(self, parent: WorkController) -> None:
        """Load in the background; the consumer starts meanwhile."""
        runtime = parent.app.runtime
        self._worker = EngineWorker(
            runtime.settings,
            runtime.sessions_for(_PATIENCE_SECONDS),
            self._models,
            self._end_process,
        )
        parent.app.engine_worker = self._worker
        self._worker.start()

    def stop(self, parent: WorkController) -> None:
        """Drain within the grace time; the process then ends with status 0."""
        self._stopping = True
        if self._worker is not None:
            self._worker.drain()
            self._worker.join()

    terminate = stop

    def _end_process(self) -> None:
        if not self._stopping:
            os.kill(os.getpid(), signal.SIGTERM)
