"""The process tree of ``tokenmill up``: services first, then the children, stopped in order."""

import http.client
import os
import signal
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import FrameType

import psutil

from runner.embedded import EmbeddedServices, ServiceUrls, prepare_data_dir
from runner.supervisor.child import Child, Death
from runner.supervisor.deaths import DeathReports
from runner.supervisor.keeper import ServiceKeeper
from runner.supervisor.remnants import sweep_remnants
from runner.supervisor.spec import ProcessSpec
from runner.supervisor.up_state import (
    ProcessState,
    UpState,
    forget_up_state,
    hold_data_dir,
    write_up_state,
)

_TICK_SECONDS = 0.1
_READY_CHECK_SECONDS = 0.2
_WRITE_AGAIN_SECONDS = 5.0
_LONGEST_FOLLOW_SECONDS = 15.0
_LAST_REPORTS_SECONDS = 5.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True)
class Plan:
    """Everything the supervisor has to know, and the four things it asks others to do."""

    data_dir: Path
    url: str
    port: int
    services: EmbeddedServices
    table: Callable[[ServiceUrls], Sequence[ProcessSpec]]
    prepare: Callable[[ServiceUrls], None]
    report_dead: Callable[[ServiceUrls, int], bool]
    tell: Callable[[str], None]
    on_ready: Callable[[UpState], None]


class Supervisor:
    """Runs one plan in the foreground until a signal ends it."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._keeper = ServiceKeeper(plan.services, plan.prepare, plan.tell)
        self._deaths = DeathReports(self._report_dead)
        self._children: list[Child] = []
        self._followers: list[Child] = []
        self._followers_due = 0.0
        self._urls: ServiceUrls | None = None
        self._signals = 0
        self._ready = False
        self._next_ready_check = 0.0
        self._written: UpState | None = None
        self._next_write = 0.0
        self._created = psutil.Process().create_time()

    def run(self) -> None:
        """Supervise until TERM, INT or HUP; a second signal skips the grace times."""
        prepare_data_dir(self._plan.data_dir)
        with hold_data_dir(self._plan.data_dir):
            former = {number: signal.signal(number, self._on_signal) for number in _heeded()}
            try:
                self._supervise()
            finally:
                for number, handler in former.items():
                    signal.signal(number, handler)

    def _supervise(self) -> None:
        self._deaths.start()
        for pid in sweep_remnants(self._plan.data_dir):
            self._deaths.add(pid)
        self._keeper.start()
        try:
            while not self._signals:
                self._tick(time.monotonic())
                time.sleep(_TICK_SECONDS)
        finally:
            self._shut_down()

    def _tick(self, now: float) -> None:
        if self._keeper.failure is not None:
            raise self._keeper.failure
        if self._keeper.urls != self._urls:
            self._move_to(self._keeper.urls, now)
        for child in self._children:
            death = child.poll(now)
            if death is not None:
                self._mourn(child, death)
            else:
                self._restart_if_due(child, now)
        if now >= self._followers_due:  # whatever holds up the page
            self._start_followers(now)
        self._check_ready(now)
        self._write_state()

    def _move_to(self, urls: ServiceUrls | None, now: float) -> None:
        """Start the children on these services; a moved service needs children that know it."""
        assert urls is not None
        if self._urls is not None:
            self._plan.tell("a service came back at another address; restarting all processes")
        self._stop_children()
        self._urls = urls
        logs = self._plan.data_dir / "logs"
        self._children = [Child(spec, logs / f"{spec.name}.log") for spec in self._plan.table(urls)]
        self._followers = [
            child for child in self._children if child.spec.follows_page and not self._ready
        ]
        self._followers_due = now + _LONGEST_FOLLOW_SECONDS
        for child in self._children:
            if child not in self._followers:
                child.start(now)

    def _start_followers(self, now: float) -> None:
        for child in self._followers:
            child.start(now)
        self._followers = []

    def _mourn(self, child: Child, death: Death) -> None:
        self._deaths.add(death.pid)
        self._plan.tell(
            f"{child.spec.name} {death.cause} after {death.ran_seconds:.0f} s; starting again in "
            f"{death.wait_seconds:g} s. See {child.log_path}"
        )

    def _restart_if_due(self, child: Child, now: float) -> None:
        try:
            if child.restart_if_due(now):
                self._plan.tell(f"{child.spec.name} started again (process {child.pid})")
        except OSError as error:  # no space for its log, no memory for a fork: it may pass
            wait = child.put_off(now)
            self._plan.tell(
                f"{child.spec.name} could not be started: {error.strerror}; again in {wait:g} s"
            )

    def _report_dead(self, pid: int) -> bool:
        return self._urls is not None and self._plan.report_dead(self._urls, pid)

    def _check_ready(self, now: float) -> None:
        if self._ready or not self._children or now < self._next_ready_check:
            return
        self._next_ready_check = now + _READY_CHECK_SECONDS
        if answers_ready(self._plan.url):
            self._ready = True
            self._start_followers(now)
            self._write_state()
            self._plan.on_ready(self._state())

    def _shut_down(self) -> None:
        self._stop_children()
        self._deaths.close(_LAST_REPORTS_SECONDS)
        self._keeper.stop(lambda: self._signals > 1)
        forget_up_state(self._plan.data_dir)

    def _stop_children(self) -> None:
        """One role after the other: who makes work stops before who serves it."""
        for role in sorted({child.spec.role for child in self._children}):
            peers = [child for child in self._children if child.spec.role is role]
            for child in peers:
                child.ask_to_stop()
            deadline = time.monotonic() + max(child.spec.grace_seconds for child in peers)
            while self._signals < 2 and time.monotonic() < deadline:
                if all(child.gone() for child in peers):
                    break
                time.sleep(_TICK_SECONDS / 2)
            for child in peers:
                self._end(child)

    def _end(self, child: Child) -> None:
        """The last step of a stop; what had to be killed could not hand back its leases."""
        if not child.gone():
            self._plan.tell(f"{child.spec.name} did not stop in time and was killed")
            if child.pid is not None:
                self._deaths.add(child.pid)
        child.bury()

    def _state(self) -> UpState:
        return UpState(
            pid=os.getpid(),
            created=self._created,
            url=self._plan.url,
            port=self._plan.port,
            ready=self._ready,
            children={child.spec.name: _state_of_child(child) for child in self._children},
            services={name: _state_of_service(pid) for name, pid in self._keeper.pids().items()},
        )

    def _write_state(self) -> None:
        state = self._state()
        if state == self._written or time.monotonic() < self._next_write:
            return
        try:
            write_up_state(self._plan.data_dir, state)
        except OSError as error:  # a full disk: what runs must not stop for that
            self._next_write = time.monotonic() + _WRITE_AGAIN_SECONDS
            self._plan.tell(f"the state of the processes could not be written: {error.strerror}")
        else:
            self._written = state

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only a count: a handler may interrupt code that holds a lock.
        self._signals += 1


def _heeded() -> list[signal.Signals]:
    """The signals that stop us, save those that nohup or a shell has told us to ignore."""
    return [number for number in _STOP_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]


def answers_ready(url: str) -> bool:
    """Whether the page and what it depends on can serve now."""
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=1) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except (OSError, http.client.HTTPException):
        return False


def _state_of_child(child: Child) -> ProcessState:
    return ProcessState(
        pid=child.pid, created=child.created, state=child.state, restarts=child.restarts
    )


def _state_of_service(pid: int | None) -> ProcessState:
    try:
        created = psutil.Process(pid).create_time() if pid else None
    except psutil.NoSuchProcess:
        pid = created = None
    return ProcessState(pid=pid, created=created, state="running" if pid else "dead")
