"""The Celery tasks, and the entry point of every Celery process.

CPU tasks call one service. Engine tasks only set an event of the engine worker in this process.
"""

import logging
from functools import partial
from typing import Any
from uuid import UUID

from celery import Celery, signals
from click import Option

from runner.caretaker import Caretaker
from runner.config import load_settings
from runner.domain.errors import StorageFull
from runner.domain.rings import Bell, Ring
from runner.log import configure_logging
from runner.runtime import Runtime, open_runtime
from runner.services.closing import close_job
from runner.services.copies import run_copies
from runner.services.counting import run_count
from runner.services.deliveries import deliver_events
from runner.services.ingest import run_ingest
from runner.services.reconcile import keep_house
from runner.services.run_outputs import write_outputs
from runner.services.run_starts import start_runs
from runner.worker.bootstep import EngineStep

logger = logging.getLogger(__name__)

_LAST_LOOK_SECONDS = 5.0
_MODEL_HELP = "Serve this model; may be given several times (default: all)."


def create_app(runtime: Runtime) -> Celery:
    """The runtime's Celery application with its tasks, as a worker or beat runs it."""
    app = runtime.celery
    app.runtime = runtime
    app.engine_worker = None
    app.steps["worker"].add(EngineStep)
    app.user_options["worker"].add(Option(["--engine"], is_flag=True, help="Run an engine."))
    app.user_options["worker"].add(Option(["--model"], multiple=True, help=_MODEL_HELP))
    _add_cpu_tasks(app, runtime)
    _add_engine_tasks(app)
    return app


def _add_cpu_tasks(app: Celery, runtime: Runtime) -> None:
    caretaker = Caretaker(
        runtime.settings, runtime.sessions, runtime.lone_sessions(), partial(_answer, runtime)
    )
    app.caretaker = caretaker

    @app.task(name=f"tokenmill.{Bell.INGEST}")  # type: ignore[untyped-decorator]
    def ingest(job_id: str) -> None:
        caretaker.answer(Ring(Bell.INGEST, UUID(job_id)))

    @app.task(name=f"tokenmill.{Bell.COUNT}")  # type: ignore[untyped-decorator]
    def count(job_id: str) -> None:
        caretaker.answer(Ring(Bell.COUNT, UUID(job_id)))

    @app.task(name=f"tokenmill.{Bell.COPY}")  # type: ignore[untyped-decorator]
    def copy(job_id: str) -> None:
        caretaker.answer(Ring(Bell.COPY, UUID(job_id)))

    @app.task(name=f"tokenmill.{Bell.FINALISE}")  # type: ignore[untyped-decorator]
    def finalise(job_id: str) -> None:
        caretaker.answer(Ring(Bell.FINALISE, UUID(job_id)))

    @app.task(name=f"tokenmill.{Bell.RUNS}")  # type: ignore[untyped-decorator]
    def runs() -> None:
        caretaker.answer(Ring(Bell.RUNS))

    @app.task(name=f"tokenmill.{Bell.DELIVER}")  # type: ignore[untyped-decorator]
    def deliver() -> None:
        caretaker.answer(Ring(Bell.DELIVER))

    @app.task(name="tokenmill.tick")  # type: ignore[untyped-decorator]
    def tick() -> None:
        caretaker.tick()

    @app.task(name="tokenmill.keep_house")  # type: ignore[untyped-decorator]
    def house() -> None:
        keep_house(runtime.sessions)


def _answer(runtime: Runtime, ring: Ring) -> None:
    """Do what a ring for CPU workers asks for."""
    if ring.bell is Bell.INGEST and ring.job_id is not None:
        try:
            runtime.require_room(0)  # items take room, too
        except StorageFull as error:  # the job waits, and every tick rings for it
            logger.warning("A file waits: %s", error, extra={"action": "disk_full"})
            return
        run_ingest(runtime.sessions, runtime.settings, ring.job_id)
    elif ring.bell is Bell.COUNT and ring.job_id is not None:
        run_count(runtime.sessions, runtime.settings, runtime.counters.open, ring.job_id)
    elif ring.bell is Bell.COPY and ring.job_id is not None:
        run_copies(runtime.sessions, ring.job_id)
    elif ring.bell is Bell.FINALISE and ring.job_id is not None:
        with runtime.sessions.begin() as session:
            close_job(session, ring.job_id)
    elif ring.bell is Bell.RUNS:
        start_runs(runtime.sessions, runtime.settings)
        write_outputs(runtime.sessions, runtime.settings)
    elif ring.bell is Bell.DELIVER:
        deliver_events(runtime.sessions, runtime.settings.webhook_hosts)


def _add_engine_tasks(app: Celery) -> None:
    @app.task(name=f"tokenmill.{Bell.WAKE}")  # type: ignore[untyped-decorator]
    def wake() -> None:
        if app.engine_worker is not None:
            app.engine_worker.wake()

    @app.task(name=f"tokenmill.{Bell.CANCEL}")  # type: ignore[untyped-decorator]
    def cancel(job_id: str) -> None:
        if app.engine_worker is not None:
            app.engine_worker.look()

    @app.task(name=f"tokenmill.{Bell.PROFILE}")  # type: ignore[untyped-decorator]
    def profile() -> None:
        if app.engine_worker is not None:
            app.engine_worker.profile()


@signals.setup_logging.connect  # type: ignore[untyped-decorator]
def _keep_our_logging(**_: Any) -> None:  # noqa: ANN401
    """Celery sets up no logging when this signal has a receiver; ours stands already."""


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]
def _forget_inherited_connections(**_: Any) -> None:  # noqa: ANN401
    """A forked CPU worker must not share its parent's database sockets."""
    app.runtime.sessions.kw["bind"].dispose(close=False)
    app.caretaker.start()


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator]
def _stop_caretaker(**_: Any) -> None:  # noqa: ANN401
    app.caretaker.stop(_LAST_LOOK_SECONDS)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _reconcile_at_start(**_: Any) -> None:  # noqa: ANN401
    """Whatever the last process of this kind left is looked at now, not at the next tick."""
    if app.engine_worker is None:
        app.send_task("tokenmill.tick")
        app.send_task("tokenmill.keep_house")


_settings = load_settings()
configure_logging(_settings)
app = create_app(open_runtime(_settings))
