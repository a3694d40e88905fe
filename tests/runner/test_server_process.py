"""Finding and stopping a server's process while processes come and go."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from runner.embedded.account import Account
from runner.embedded.process import ServerProcess, ServerSlot

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")
OURSELVES = Account(os.getuid(), os.getgid(), drops=False)


def test_a_process_that_ends_while_it_is_looked_at_is_not_the_server(tmp_path: Path) -> None:
    """As the processes of a database do whose main process was killed."""
    ending = subprocess.Popen(SLEEP, cwd=tmp_path)

    def is_main(process: psutil.Process) -> bool:
        if process.pid == ending.pid:
            ending.kill()
            while process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.01)
            process.cmdline()  # raises, as it does for every process that is not reaped yet
        return process.pid == server.pid

    slot = ServerSlot(tmp_path, tmp_path / "lock", tmp_path / "log", is_main)
    server = slot.spawn(SLEEP, OURSELVES)
    found = slot.occupant()
    assert found is not None
    assert found.pid == server.pid
    assert ending.wait() == -signal.SIGKILL
    slot.vacate(server, [(signal.SIGTERM, 90.0)])
    assert not slot.occupied()


def test_a_signal_to_a_process_that_is_gone_is_no_error() -> None:
    child = subprocess.Popen(SLEEP)
    orphan = ServerProcess(psutil.Process(child.pid), None)
    child.kill()
    child.wait()
    orphan.send(signal.SIGINT)
    assert not orphan.alive()
