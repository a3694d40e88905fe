"""The engine worker as a whole: it has one model after the other, drains, and dies in order."""

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from sqlalchemy.orm import Session

from runner.config import Settings
from runner.db.outages import cause_of
from runner.db.session import OUTAGES, SessionFactory
from runner.services.models import ModelRecord
from runner.services.residency import Seat, change_seat, take_seat
from runner.services.worker_time import keep_waste
from runner.services.workers import beat, end_worker
from runner.worker.context import WorkerContext
from runner.worker.metrics import WorkerMetrics
from runner.worker.model_watch import ModelWatch
from runner.worker.patience import Patience, persist
from runner.worker.resident_model import ResidentModel
from runner.worker.threads import start_thread

logger = logging.getLogger(__name__)

_MODEL_SECONDS = 2.0  # between looks while no model is registered
_LAST_WORD_SECONDS = 3.0  # the end of a worker is not worth waiting for the database


class EngineWorker:
    """One process's engine with its feeder, step loop, writer and keeper.

    It serves the models of ``model_names``, or all if there are none, one at a time: each stay of a
    model is a worker of its own in the database. ``on_drained`` is called once it has ended, so
    that the process can end too when the worker did so by itself (asked through the database).
    """

    def __init__(
        self,
        settings: Settings,
        sessions: SessionFactory,
        model_names: Sequence[str],
        on_drained: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._names = tuple(model_names)
        self._on_drained = on_drained
        self._wake = threading.Event()
        self._look = threading.Event()
        self._profile = threading.Event()
        self._leaving = threading.Event()  # take no more for the present model
        self._draining = threading.Event()  # nor for any other
        self._ended = threading.Event()
        self._next: ModelRecord | None = None
        self._has_told = False

    def start(self) -> None:
        """Begin to load and work, in threads of this process."""
        start_thread("engine-worker", self._run)

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
        self._leaving.set()
        self._wake.set()

    def join(self) -> None:
        """Wait until a draining worker has given back everything."""
        self._ended.wait()

    def _run(self) -> None:
        try:
            seat = self._first_seat()
            while seat is not None:
                seat = self._stay(seat)
        except OUTAGES as error:
            # Raised only while draining: what is missing in the database is found by others.
            logger.warning(
                "Ended without the database: %s", cause_of(error), extra={"action": "lone_end"}
            )
        self._ended.set()
        self._on_drained()

    def _first_seat(self) -> Seat | None:
        """Register for the model that is needed most; None if this is drained before there is one.

        Repeated after a lost answer it leaves a row that nobody uses, which is buried as silent.
        """
        patience = Patience("Looking for a model", "look_failed")
        host, pid = socket.gethostname(), os.getpid()
        while not self._draining.is_set():
            pause = _MODEL_SECONDS
            try:
                with self._sessions.begin() as session:
                    seat = take_seat(session, host, pid, self._names)
            except OUTAGES as error:
                pause = patience.pause_after(error)
            else:
                patience.passed()
                if seat is not None:
                    return seat
                self._tell_of_lack()
            self._draining.wait(pause)
        return None

    def _tell_of_lack(self) -> None:
        """Say once that there is nothing to load: the names may be mistyped."""
        if not self._has_told:
            names = " or ".join(self._names) or "any name"
            logger.warning(
                "Waiting until a model named %s is registered; see: tokenmill models ls.",
                names,
                extra={"action": "no_model"},
            )
        self._has_told = True

    def _stay(self, seat: Seat) -> Seat | None:
        """Have a model until this drains or makes room for another: then the seat for that."""
        self._next = None
        self._leaving.clear()
        if self._draining.is_set():  # it was set before the line above, or will set both again
            self._leaving.set()
        context = self._context(seat)
        resident = ResidentModel(context, seat.model, self._draining)
        watch = ModelWatch(context, self._names, self._make_room)
        last_stats = resident.run(watch, self.drain)
        context.times.settle()
        give_up_at = time.monotonic() + _LAST_WORD_SECONDS

        def end(session: Session) -> Seat | None:
            beat(session, context.worker_id, context.times.read(), last_stats)
            keep_waste(session, context.worker_id, context.times.changed_waste())
            if self._next is not None and not self._draining.is_set():
                return change_seat(session, context.worker_id, self._next)
            end_worker(session, context.worker_id, "drained")
            return None

        def give_up() -> bool:
            has_next = self._next is not None and not self._draining.is_set()
            return not has_next and time.monotonic() > give_up_at

        return persist(self._sessions, end, Patience("The end", "end_failed"), give_up)

    def _context(self, seat: Seat) -> WorkerContext:
        return WorkerContext(
            self._settings,
            self._sessions,
            seat.worker_id,
            seat.model.id,
            WorkerMetrics(seat.model.name),
            wake=self._wake,
            look=self._look,
            profile=self._profile,
            draining=self._leaving,
        )

    def _make_room(self, model: ModelRecord) -> None:
        """Finish what is in the engine, give back the rest, and load another model."""
        logger.info("Making room for %s.", model.name, extra={"action": "make_room"})
        self._next = model
        self._leaving.set()
        self._wake.set()
