"""The threads of an engine worker: a fault in any of them ends the process."""

import logging
import os
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)

FAULT_STATUS = 70  # the exit status of a worker whose engine or bookkeeping failed


def start_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """Begin some work in a thread of this process."""
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
