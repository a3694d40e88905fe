"""The engine's process of a run: the engine worker as it is, with pipes for a broker.

Run as ``python -m runner.offline.engine MODEL``. TERM asks it to drain. When its standard input
ends, the run is gone, whatever it died of: then the engine ends the run's database and itself.
"""

import logging
import os
import signal
import sys
import threading

from runner.config import Settings, arm_failpoints, load_settings
from runner.db.session import create_session_factory
from runner.domain.rings import Bell, Ring
from runner.doorbell import connect_doorbell
from runner.log import configure_logging
from runner.offline.pipe import PipeBell, hear
from runner.offline.place import stop_services
from runner.worker.engine_worker import EngineWorker


def main() -> None:
    """Work until drained."""
    settings = load_settings()
    configure_logging(settings)
    arm_failpoints(settings)
    assert settings.database_url is not None
    sessions = create_session_factory(settings.database_url)
    connect_doorbell(sessions, PipeBell(sys.stdout.buffer).send)
    ended = threading.Event()
    worker = EngineWorker(settings, sessions, sys.argv[1:2], ended.set)
    signal.signal(signal.SIGTERM, lambda *_: worker.drain())
    worker.start()
    threading.Thread(target=_listen, args=(settings, worker), name="pipe", daemon=True).start()
    ended.wait()
    # At once: the interpreter's own end would wait for the thread that reads the pipe, and abort.
    os._exit(0)


def _listen(settings: Settings, worker: EngineWorker) -> None:
    def on_ring(ring: Ring) -> None:
        if ring.bell is Bell.WAKE:
            worker.wake()
        else:
            worker.look()

    try:
        hear(sys.stdin.buffer, on_ring)
        # What was in hand is not given back: what killed the run may have been one of its lines.
        stop_services(settings.data_dir)
    except Exception:
        logging.getLogger(__name__).exception("The run is gone; its database may still run.")
    finally:
        os._exit(0)  # whatever went wrong: this process holds the lock that the next run waits for


if __name__ == "__main__":
    main()
