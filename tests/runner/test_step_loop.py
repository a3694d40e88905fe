"""The thread that owns the backend, and the book of leases, without a database."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from patience import PATIENCE
from test_line_bodies import HELLO, lease_for, line_of

from runner.domain.leases import ItemInput, Lease, ShardKey
from runner.inference.backend import LineRefusal, Outcome, Task
from runner.inference.stub import StubBackend
from runner.worker.lease_book import LeaseBook
from runner.worker.lines import Ended, Revoked
from runner.worker.step_loop import StepLoop
from runner.worker.step_profile import StepProfile
from runner.worker.time_sheet import TimeSheet


class Refusing(StubBackend):
    """A stub that takes no line whose custom id is "no", and remembers what it was told."""

    def __init__(self, rows: int, step_ms: float) -> None:
        super().__init__(rows, step_ms)
        self.submitted: list[int] = []
        self.expected: list[bool] = []

    def expect_more(self, more: bool) -> None:
        self.expected.append(more)
        super().expect_more(more)

    def submit(self, task: Task) -> None:
        self.submitted.append(task.idx)
        if task.custom_id == "no":
            raise LineRefusal(400, "context_length_exceeded", "Too long.")
        super().submit(task)


class Bench:
    """A step loop in a thread, with what it works on."""

    def __init__(self, backend: type[Refusing], rows: int = 2, step_ms: float = 5.0) -> None:
        self.backend = backend(rows, step_ms)
        self.book = LeaseBook()
        self.ended: queue.Queue[Ended] = queue.Queue()
        self.times = TimeSheet()
        self.loop = StepLoop(self.backend, self.book, self.ended, self.times)
        self.thread = threading.Thread(target=self.loop.run)

    def lease(self, shard_no: int, lines: int, priority: int = 0) -> tuple[Lease, list[Task]]:
        base = lease_for()
        key = ShardKey(base.key.job_id, shard_no, 1)
        lease = replace(base, key=key, priority=priority)
        self.book.add(lease, lines)
        return lease, [self.task(lease, idx) for idx in range(lines)]

    def task(self, lease: Lease, idx: int, custom_id: str = "a") -> Task:
        data = line_of({"messages": HELLO, "seed": idx})
        return self.backend.prepare(lease, ItemInput(idx, custom_id, data))

    def next(self) -> Ended:
        return self.ended.get(timeout=PATIENCE)

    def keep_step(self) -> None:
        """Let the loop do no more than what was read of it, however late the reader comes."""
        self.ended.maxsize = 1

    def end(self) -> None:
        """Stop the loop, which may wait for somebody who reads."""
        self.loop.stop()
        deadline = time.monotonic() + PATIENCE
        while self.thread.is_alive() and time.monotonic() < deadline:
            with suppress(queue.Empty):
                self.ended.get(timeout=0.01)
        assert not self.thread.is_alive()


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(getattr(request, "param", Refusing))
    yield bench
    if bench.thread.ident is None:
        bench.thread.start()
    bench.end()


def test_tasks_run_by_priority_then_arrival(bench: Bench) -> None:
    _, low = bench.lease(0, 3)
    _, high = bench.lease(1, 2, priority=5)
    bench.loop.submit(low)
    bench.loop.submit(high)
    bench.thread.start()
    ended = [bench.next() for _ in range(5)]
    priorities = [outcome.task.lease.priority for outcome in ended if isinstance(outcome, Outcome)]
    assert priorities == [5, 5, 0, 0, 0]


def test_an_urgent_task_enters_a_full_backend(bench: Bench) -> None:
    _, low = bench.lease(0, 9)
    _, high = bench.lease(1, 9, priority=5)
    bench.loop.submit(low)
    bench.keep_step()
    bench.thread.start()
    bench.next()  # two of them run, another waits in the backend
    bench.loop.submit(high)
    urgent = [bench.next() for _ in range(8)]
    levels = [outcome.task.lease.priority for outcome in urgent if isinstance(outcome, Outcome)]
    assert levels.count(5) >= 5
    assert 0 in {task.lease.priority for task in low}


def test_once_no_more_will_come_the_longest_lines_go_first(bench: Bench) -> None:
    lease, _ = bench.lease(0, 5)
    limits = {0: 3, 1: 9, 2: 5, 3: None, 4: 9}
    bodies = {idx: line_of({"messages": HELLO, "max_tokens": n}) for idx, n in limits.items()}
    bench.loop.submit(
        [bench.backend.prepare(lease, ItemInput(idx, "a", body)) for idx, body in bodies.items()]
    )
    bench.loop.expect_more(False)
    bench.thread.start()
    for _ in limits:
        bench.next()
    assert bench.backend.submitted == [3, 1, 4, 2, 0]
    assert bench.backend.expected == [False]


def test_the_end_of_a_lease_follows_its_last_outcome(bench: Bench) -> None:
    kept, some = bench.lease(0, 2)
    gone, others = bench.lease(1, 40)
    bench.loop.submit([*some, *others])
    bench.keep_step()
    bench.thread.start()
    seen = [bench.next(), bench.next()]
    bench.book.drop([gone.key])
    bench.loop.revoke({gone.key}, release=True)
    while not isinstance(entry := bench.next(), Revoked):
        seen.append(entry)
    assert entry == Revoked(frozenset({gone.key}), release=True)
    assert bench.backend.unfinished == 0
    assert len(seen) < 42
    assert bench.ended.empty()
    assert bench.book.keys() == {kept.key}


def test_a_line_the_backend_does_not_take_ends_alone(bench: Bench) -> None:
    lease, tasks = bench.lease(0, 2)
    bench.loop.submit([bench.task(lease, 9, "no"), *tasks])
    bench.thread.start()
    ended = [entry for entry in (bench.next() for _ in range(3)) if isinstance(entry, Outcome)]
    refused = [entry for entry in ended if isinstance(entry.answer, LineRefusal)]
    assert [entry.task.idx for entry in refused] == [9]
    assert len(ended) == 3


def test_what_is_not_held_any_more_is_not_begun(bench: Bench) -> None:
    gone, tasks = bench.lease(0, 3)
    _, others = bench.lease(1, 1)
    bench.book.drop([gone.key])
    bench.loop.submit(tasks)
    bench.loop.submit(others)
    bench.thread.start()
    entry = bench.next()
    assert isinstance(entry, Outcome)
    assert entry.task.lease.key.shard_no == 1


def test_wall_time_is_busy_or_idle_and_aborted_work_is_wasted(bench: Bench) -> None:
    lease, tasks = bench.lease(0, 8)
    # The two rows end their lines at different steps, so that one of them is always under way.
    short = line_of({"messages": HELLO, "max_tokens": 3})
    tasks[0] = bench.backend.prepare(lease, ItemInput(0, "a", short))
    bench.keep_step()
    bench.thread.start()
    bench.loop.submit(tasks)
    bench.next()
    bench.book.drop([lease.key])
    bench.loop.revoke({lease.key}, release=False)
    while not isinstance(bench.next(), Revoked):
        pass
    times = bench.times.read()
    assert times.busy_us > 0
    assert times.wasted_us > 0


def test_the_book_gives_up_only_what_has_not_begun_and_is_not_urgent() -> None:
    book = LeaseBook()
    started, waiting, urgent = (
        replace(lease_for(), key=ShardKey(lease_for().key.job_id, n, 1), priority=priority)
        for n, priority in ((0, 0), (1, 0), (2, 5))
    )
    for lease in (started, waiting, urgent):
        book.add(lease, 4)
    assert book.start(started.key)
    assert book.drop_unstarted(above=0) == {waiting.key}
    assert book.keys() == {started.key, urgent.key}
    assert not book.start(waiting.key)
    assert book.lines == 8
    book.finish([started.key, started.key, waiting.key])
    assert book.lines == 6
    assert book.drop([started.key, waiting.key]) == {started.key}


class Recorder:
    """What a backend was asked to record."""

    def __init__(self) -> None:
        self.is_ended = False

    def end(self) -> None:
        self.is_ended = True

    def trace(self) -> bytes:
        return b""


class Recordable(Refusing):
    """A stub that can be recorded."""

    def record(self) -> Recorder:
        return Recorder()


can_record = pytest.mark.parametrize("bench", [Recordable], indirect=True)


@can_record
def test_a_profile_covers_the_next_steps_that_have_work(bench: Bench) -> None:
    bench.thread.start()
    profile = StepProfile(3, seconds=600)
    bench.loop.profile(profile)
    assert not profile.begun.wait(0.3)  # idle
    _, tasks = bench.lease(0, 8)
    bench.loop.submit(tasks)
    assert profile.ended.wait(PATIENCE)
    assert profile.begun.is_set()
    assert profile.steps_done == 3
    recording = profile.recording
    assert isinstance(recording, Recorder)
    assert recording.is_ended


def test_an_idle_workers_profile_ends_at_its_time_with_nothing(bench: Bench) -> None:
    bench.thread.start()
    profile = StepProfile(3, seconds=0.1)
    bench.loop.profile(profile)
    assert profile.ended.wait(PATIENCE)
    assert (profile.recording, profile.steps_done) == (None, 0)


def test_the_stub_refuses_a_profile_and_works_on(bench: Bench) -> None:
    bench.thread.start()
    profile = StepProfile(3, seconds=600)
    bench.loop.profile(profile)
    _, tasks = bench.lease(0, 1)
    bench.loop.submit(tasks)
    assert isinstance(bench.next(), Outcome)
    assert profile.ended.wait(PATIENCE)
    assert "stub" in (profile.refusal or "")


@can_record
def test_nobody_waits_for_a_profile_of_a_loop_that_has_ended(bench: Bench) -> None:
    bench.thread.start()
    before, after = StepProfile(10_000, seconds=600), StepProfile(1, seconds=600)
    bench.loop.profile(before)
    bench.loop.stop()
    bench.thread.join(PATIENCE)
    bench.loop.profile(after)
    assert before.ended.is_set()
    assert after.ended.is_set()


def test_a_lease_that_winds_up_ends_with_what_is_in_the_backend(bench: Bench) -> None:
    gone, tasks = bench.lease(0, 40)
    bench.loop.submit(tasks)
    bench.keep_step()
    bench.thread.start()
    seen = [bench.next()]
    bench.loop.wind_up(bench.book.wind_up([gone.key]))
    while not isinstance(entry := bench.next(), Revoked):
        seen.append(entry)
    assert entry == Revoked(frozenset({gone.key}), release=True)
    # All that had entered the backend has its outcome, and nothing was thrown away.
    assert sorted(seen_idx(seen)) == sorted(bench.backend.submitted)
    assert len(seen) < 40
    assert bench.times.read().wasted_us == 0
    assert bench.book.keys() == set()


def test_tasks_that_come_late_for_a_lease_that_winds_up_are_not_begun(bench: Bench) -> None:
    gone, tasks = bench.lease(0, 4)
    kept, others = bench.lease(1, 1)
    assert bench.book.wind_up([gone.key]) == {gone.key}
    assert bench.book.wind_up([gone.key]) == set()
    bench.loop.submit(tasks)
    bench.loop.wind_up({gone.key})
    bench.loop.submit([*tasks, *others])
    bench.thread.start()
    assert bench.next() == Revoked(frozenset({gone.key}), release=True)
    (outcome,) = [bench.next()]
    assert isinstance(outcome, Outcome)
    assert outcome.task.lease.key == kept.key
    assert bench.ended.empty()


def seen_idx(ended: list[Ended]) -> list[int]:
    return [entry.task.idx for entry in ended if isinstance(entry, Outcome)]
