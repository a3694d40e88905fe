"""A supervisor in a process of its own, over small real children, for the tests of it."""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
from patience import PATIENCE

from runner.supervisor import ProcessState, read_up_state

SUPERVISE = """
import json, os, sys, time
from pathlib import Path
from runner.embedded import EmbeddedServices
from runner.supervisor import Plan, ProcessSpec, Role, Supervisor, supervisor

job = json.loads(sys.argv[1])
data_dir = Path(job["data_dir"])
given = {} if job["services"] else {"database_url": "postgresql://none", "broker_url": "redis://no"}

def say(*words):
    # In one piece: two threads may speak at once.
    sys.stdout.write(json.dumps(words) + "\\n")
    sys.stdout.flush()

def dead(urls, pid):
    say("dead", pid)
    return True

def prepare(urls):
    say("preparing")
    time.sleep(job["prepare_seconds"])

specs = [
    ProcessSpec(n, Role[r], tuple(c), dict(os.environ), g, n in job["followers"])
    for n, r, c, g in job["table"]
]
supervisor._LONGEST_FOLLOW_SECONDS = job["follow_seconds"]
Supervisor(Plan(
    data_dir=data_dir, url=f"http://127.0.0.1:{job['port']}", port=job["port"],
    services=EmbeddedServices(data_dir, fast=True, **given),
    table=lambda urls: specs, prepare=prepare,
    report_dead=dead, tell=lambda line: say("told", line),
    on_ready=lambda state: say("ready", state.url),
)).run()
"""

# Writes its name at start and at the end; given "deaf" it ignores TERM, given "fork" it forks.
CHILD = """
import os, signal, subprocess, sys, time
name, events, *ways = sys.argv[1:]
def note(what):
    with open(events, "a") as file:
        file.write(f"{what} {name} {os.getpid()}\\n")
def end(number, frame):
    note("end")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in ways else end)
if "fork" in ways:
    subprocess.Popen([sys.executable, __file__, name + "-fork", events, "deaf"])
note("start")
while True:
    time.sleep(0.05)
"""

Row = tuple[str, str, Sequence[str], float]


class Run:
    """One supervisor process and what it said."""

    def __init__(
        self,
        data_dir: Path,
        table: Sequence[Row],
        *,
        services: bool,
        port: int,
        prepare_seconds: float,
        followers: Sequence[str],
        follow_seconds: float,
    ) -> None:
        self.data_dir = data_dir
        job = {
            "data_dir": str(data_dir),
            "table": table,
            "services": services,
            "port": port,
            "prepare_seconds": prepare_seconds,
            "followers": followers,
            "follow_seconds": follow_seconds,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, json.dumps(job)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> list[list[object]]:
        """Everything said until the process ended."""
        output, _ = self.process.communicate(timeout=PATIENCE)
        return [json.loads(line) for line in output.splitlines()]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)

    def hear(self, words: str) -> None:
        """Wait until something is said with these words in it."""
        assert self.process.stdout is not None
        assert any(words in line for line in self.process.stdout), "it was not said"


def child(events: Path, name: str, role: str, *ways: str, grace: float = 60.0) -> Row:
    """A line of the table: a child that notes what becomes of it."""
    script = events.with_name("child.py")
    script.write_text(CHILD)
    return (name, role, (sys.executable, str(script), name, str(events), *ways), grace)


def events_of(path: Path, kind: str) -> dict[str, int]:
    """Name and pid of each event of a kind, in order."""
    lines = path.read_text().splitlines() if path.exists() else []
    words = [line.split() for line in lines]
    return {name: int(pid) for what, name, pid in words if what == kind}


def children_of(data_dir: Path) -> dict[str, ProcessState]:
    """The children that the state file tells of."""
    state = read_up_state(data_dir)
    return state.children if state else {}


def services_of(data_dir: Path) -> set[int]:
    """The processes of the services that the state file tells of."""
    state = read_up_state(data_dir)
    return {service.pid for service in state.services.values() if service.pid} if state else set()


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
