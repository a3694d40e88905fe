"""What the threads of one worker share."""

import queue
import threading
from dataclasses import dataclass, field

from runner.config import Settings
from runner.db.session import SessionFactory
from runner.domain.ids import ModelId, WorkerId
from runner.worker.energy import PowerLog
from runner.worker.lease_book import LeaseBook
from runner.worker.lines import Ended
from runner.worker.metrics import WorkerMetrics
from runner.worker.time_sheet import TimeSheet

_ENDED_MOST = 4096  # results that may wait for the writer before the step loop has to


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """Identity, connections and the shared books of one worker process."""

    settings: Settings
    sessions: SessionFactory
    worker_id: WorkerId
    model_id: ModelId
    metrics: WorkerMetrics
    book: LeaseBook = field(default_factory=LeaseBook)
    times: TimeSheet = field(default_factory=TimeSheet)
    power: PowerLog = field(default_factory=PowerLog)
    ended: "queue.Queue[Ended]" = field(default_factory=lambda: queue.Queue(_ENDED_MOST))
    wake: threading.Event = field(default_factory=threading.Event)  # there may be work
    look: threading.Event = field(default_factory=threading.Event)  # leases may have changed
    profile: threading.Event = field(default_factory=threading.Event)  # somebody asks for one
    cut_off: threading.Event = field(default_factory=threading.Event)  # leases may have lapsed
    draining: threading.Event = field(default_factory=threading.Event)  # take no more
