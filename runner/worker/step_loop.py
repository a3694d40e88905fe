"""The thread that owns the backend: take tasks, step, hand on what ended. It does no I/O."""

import heapq
import itertools
import queue
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from runner.domain.ids import JobId
from runner.domain.leases import LineMetrics, ShardKey
from runner.failpoints import FailPoint, hit
from runner.inference.backend import Backend, LineRefusal, Outcome, Task
from runner.worker.lease_book import LeaseBook
from runner.worker.lines import Ended, Revoked
from runner.worker.step_profile import StepProfile
from runner.worker.time_sheet import TimeSheet, now_us

_LOOK_AHEAD = 1.25  # tasks in the backend, as a multiple of its rows; the rest can be given back
_IDLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Submit:
    tasks: Sequence[Task]


@dataclass(frozen=True, slots=True)
class _Profile:
    profile: StepProfile


@dataclass(frozen=True, slots=True)
class _Expect:
    more: bool


@dataclass(frozen=True, slots=True)
class _WindUp:
    keys: frozenset[ShardKey]


class _Hold:
    """Let nothing more into the backend."""


class _Stop:
    """The last message."""


_Message = _Submit | Revoked | _WindUp | _Profile | _Expect | _Hold | _Stop


class StepLoop:
    """Runs tasks in order of priority, then arrival; once no more will come, longest first."""

    def __init__(
        self,
        backend: Backend,
        book: LeaseBook,
        ended: "queue.Queue[Ended]",
        times: TimeSheet,
    ) -> None:
        self._backend = backend
        self._book = book
        self._ended = ended
        self._times = times
        self._mail: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._waiting: list[tuple[int, int, int, Task]] = []
        self._expects_more = True
        self._arrivals = itertools.count()
        self._inside: dict[str, Task] = {}
        self._winding_up: set[ShardKey] = set()
        self._profile: StepProfile | None = None
        self._holding = False
        self._stopping = False
        self._is_over = False

    @property
    def is_empty(self) -> bool:
        """Whether no task is in the backend (any thread; exact once ``hold`` has been heard)."""
        return not self._inside

    def submit(self, tasks: Sequence[Task]) -> None:
        """Hand over tasks (any thread)."""
        self._mail.put(_Submit(tasks))

    def revoke(self, keys: set[ShardKey], release: bool) -> None:
        """Abort what belongs to some leases; their ``Revoked`` follows their last outcome."""
        if keys:
            self._mail.put(Revoked(frozenset(keys), release))

    def wind_up(self, keys: set[ShardKey]) -> None:
        """Give each of these leases back once what it has in the backend ended (any thread)."""
        if keys:
            self._mail.put(_WindUp(frozenset(keys)))

    def profile(self, profile: StepProfile) -> None:
        """Record the next steps (any thread); one profile at a time."""
        self._mail.put(_Profile(profile))
        if self._is_over:  # it has read its last letter; nothing was recorded
            profile.end()

    def expect_more(self, more: bool) -> None:
        """Whether there is anything left to lease (any thread)."""
        self._mail.put(_Expect(more))

    def hold(self) -> None:
        """Finish what is in the backend and start nothing more (any thread)."""
        self._mail.put(_Hold())

    def stop(self) -> None:
        """End the loop after the present step (any thread)."""
        self._mail.put(_Stop())

    def run(self) -> None:
        """The loop; it ends on ``stop``."""
        last = now_us()
        while not self._stopping:
            self._read_mail(block=False)
            self._admit()
            if self._backend.unfinished:
                begun = now_us()  # before it lines were taken in: no step, and the device waited
                for outcome in self._step():
                    del self._inside[outcome.task.key]
                    self._ended.put(outcome)
                self._release_wound_up()
                now = now_us()
                self._times.add(busy_us=now - begun, idle_us=begun - last)
            else:
                self._read_mail(block=True)
                now = now_us()
                self._times.add(idle_us=now - last)
            last = now
            self._attend_profile()
        self._end_profiles()

    def _step(self) -> list[Outcome]:
        if self._profile is None:
            return self._backend.step()
        self._profile.before_step(self._backend)
        outcomes = self._backend.step()
        self._profile.after_step()
        return outcomes

    def _attend_profile(self) -> None:
        if self._profile is not None:
            self._profile.end_when_late()
            if self._profile.ended.is_set():
                self._profile = None

    def _end_profiles(self) -> None:
        """Nobody may wait for a loop that has ended."""
        self._is_over = True
        if self._profile is not None:
            self._profile.end()
        while not self._mail.empty():
            message = self._mail.get_nowait()
            if isinstance(message, _Profile):
                message.profile.end()

    def _read_mail(self, block: bool) -> None:
        try:
            self._take(self._mail.get(timeout=_IDLE_SECONDS) if block else self._mail.get_nowait())
            while True:
                self._take(self._mail.get_nowait())
        except queue.Empty:
            return

    def _take(self, message: _Message) -> None:
        match message:
            case _Submit(tasks):
                for task in tasks:
                    heapq.heappush(self._waiting, self._entry(task, next(self._arrivals)))
            case Revoked(keys, _):
                self._abort(keys)
                self._ended.put(message)
            case _WindUp(keys):
                self._drop_waiting(keys)
                self._winding_up |= keys
                self._release_wound_up()
            case _Profile(profile):
                self._profile = profile
            case _Expect(more):
                self._expect(more)
            case _Hold():
                self._holding = True
            case _Stop():
                self._stopping = True

    def _entry(self, task: Task, arrival: int) -> tuple[int, int, int, Task]:
        length = 0 if self._expects_more else _output_limit(task)
        return (-task.lease.priority, -length, arrival, task)

    def _expect(self, more: bool) -> None:
        if more == self._expects_more:
            return
        self._expects_more = more
        self._backend.expect_more(more)
        self._waiting = [self._entry(task, arrival) for _, _, arrival, task in self._waiting]
        heapq.heapify(self._waiting)

    def _abort(self, keys: frozenset[ShardKey]) -> None:
        inside = [key for key, task in self._inside.items() if task.lease.key in keys]
        by_job: dict[JobId, list[str]] = {}
        for key in inside:
            by_job.setdefault(self._inside.pop(key).lease.key.job_id, []).append(key)
        for job_id, tasks in by_job.items():
            self._times.add_waste(job_id, len(tasks), self._backend.abort(tasks))
        self._winding_up -= keys
        self._drop_waiting(keys)

    def _drop_waiting(self, keys: frozenset[ShardKey]) -> None:
        self._waiting = [entry for entry in self._waiting if entry[-1].lease.key not in keys]
        heapq.heapify(self._waiting)

    def _release_wound_up(self) -> None:
        """Give back leases that wind up and have nothing in the backend any more."""
        if self._winding_up:
            busy = {task.lease.key for task in self._inside.values()}
            over = self._winding_up - busy
            self._winding_up &= busy
            dropped = self._book.drop(over)
            if dropped:
                self._ended.put(Revoked(frozenset(dropped), release=True))

    def _admit(self) -> None:
        """Move waiting tasks into the backend while it looks no further ahead than it should."""
        most = max(1, int(self._backend.rows * _LOOK_AHEAD))
        while self._waiting and not self._holding and self._may_enter(most):
            *_, task = heapq.heappop(self._waiting)
            if not self._book.start(task.lease.key):
                continue
            hit(FailPoint.ENGINE_SUBMIT, task.prompt_text)
            try:
                self._backend.submit(task)
            except LineRefusal as refusal:
                self._ended.put(Outcome(task, refusal, LineMetrics()))
            else:
                self._inside[task.key] = task

    def _may_enter(self, most: int) -> bool:
        """Whether the next task may: there is room, or it is more urgent than one that is in."""
        unfinished = self._backend.unfinished
        if unfinished < most:
            return True
        if unfinished >= most + self._backend.rows:
            return False
        urgency = -self._waiting[0][0]
        return any(task.lease.priority < urgency for task in self._inside.values())


def _output_limit(task: Task) -> int:
    """Most tokens a choice of the task may make; without a limit it may make the most of all."""
    if task.request.embedding is not None:
        return 0
    limit = task.request.sampling.max_tokens
    return sys.maxsize if limit is None else limit
