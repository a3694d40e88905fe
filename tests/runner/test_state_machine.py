"""Any order of events on real Postgres, three workers: what must always hold, holds.

The invariants are I1 to I7 of the house: counts add up, no line is lost or doubled, a result has
the epoch of a lease that was live, the ledger is the sum of what was accepted, epochs only grow,
and an ended job never changes.
"""

import os
from collections import Counter, defaultdict
from typing import ClassVar

import pytest
from databases import empty
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select, update
from workshop import Workshop, make_item

from runner.config import Settings
from runner.db.models import Job, Result, Shard, Usage
from runner.db.session import SessionFactory, create_session_factory
from runner.domain.ids import JobId, WorkerId
from runner.domain.leases import FinishedItem, Lease
from runner.domain.states import PENDING_SHARD_STATES, JobState

WORKERS = st.integers(0, 2)
ANY = st.integers(0, 1_000_000)


class Actor:
    """One worker as it sees itself: who it is, and what it believes to hold."""

    def __init__(self, worker_id: WorkerId, pid: int) -> None:
        self.id = worker_id
        self.pid = pid
        self.held: list[Lease] = []


class House(RuleBasedStateMachine):
    """Jobs, workers and ticks in any order."""

    shop_settings: ClassVar[Settings]
    sessions: ClassVar[SessionFactory]
    seen: ClassVar[Counter[str]] = Counter()

    @initialize()
    def open(self) -> None:
        assert self.shop_settings.database_url is not None
        empty(self.shop_settings.database_url)
        self.shop = Workshop(self.sessions, self.shop_settings)
        self.jobs: list[JobId] = []
        self.pids = 0
        self.actors = [self.hire() for _ in range(3)]
        self.lost: list[tuple[WorkerId, list[FinishedItem]]] = []
        self.accepted: set[tuple[object, int, int]] = set()
        self.epochs: dict[tuple[object, int], int] = defaultdict(int)
        self.ended: dict[object, object] = {}
        self.jobs.append(self.shop.make_job(9))
        self.jobs.append(self.shop.make_job(5, priority=1))
        self.furnish()

    def furnish(self) -> None:
        """What stands in a house of another kind from the beginning."""

    def hire(self) -> Actor:
        self.pids += 1
        return Actor(self.shop.make_worker(pid=self.pids), self.pids)

    def a_job(self, pick: int) -> JobId:
        return self.jobs[pick % len(self.jobs)]

    def lose(self, actor: Actor) -> None:
        """What an actor held has gone; what it had in the engine may still come."""
        for lease in actor.held:
            self.lost.append((actor.id, self.shop.answer(lease)))
        actor.held = []

    @rule(lines=st.integers(1, 9), bad=st.sets(st.integers(0, 8)), priority=st.integers(-1, 1))
    def create(self, lines: int, bad: set[int], priority: int) -> None:
        items = [
            b"nonsense" if n in bad else make_item(f"line-{n}", f"Tale {n} of {len(self.jobs)}")
            for n in range(lines)
        ]
        on_invalid = "fail" if len(bad) > 3 else "skip"
        self.jobs.append(
            self.shop.make_job(items, ingested=False, on_invalid=on_invalid, priority=priority)
        )

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def ingest(self, pick: int) -> None:
        self.shop.ingest(self.a_job(pick))

    @rule(worker=WORKERS, shards=st.integers(1, 3))
    def claim(self, worker: int, shards: int) -> None:
        actor = self.actors[worker]
        held = self.shop.claim(actor.id, shards, holds=bool(actor.held))
        if any(lease.suspect for lease in held):
            assert len(held) == 1
            assert not actor.held
        actor.held += held

    @rule(worker=WORKERS, most=st.integers(1, 20))
    def complete(self, worker: int, most: int) -> None:
        actor = self.actors[worker]
        pack = [item for lease in actor.held for item in self.shop.answer(lease)][:most]
        outcome = self.shop.commit(actor.id, pack)
        assert (outcome.accepted, outcome.stale) == (len(pack), ())
        self.note(pack)
        actor.held = [lease for lease in actor.held if lease.key not in outcome.done]
        again = self.shop.commit(actor.id, pack)
        assert (again.accepted, again.stale) == (0, ())

    def note(self, pack: list[FinishedItem]) -> None:
        self.accepted |= {self.place(item) for item in pack}
        self.seen["accepted"] += len(pack)

    def place(self, item: FinishedItem) -> tuple[object, int, int]:
        return item.lease.key.job_id, item.idx, item.lease.key.epoch

    @precondition(lambda self: self.lost)
    @rule(pick=ANY)
    def come_late(self, pick: int) -> None:
        worker_id, pack = self.lost.pop(pick % len(self.lost))
        outcome = self.shop.commit(worker_id, pack)
        assert outcome.accepted == 0
        unknown = [item for item in pack if self.place(item) not in self.accepted]
        assert len(outcome.stale) == len(unknown)
        self.seen["late"] += len(unknown)

    @rule(worker=WORKERS)
    def give_back(self, worker: int) -> None:
        actor = self.actors[worker]
        self.shop.give_back(actor.id, *actor.held)
        self.lose(actor)

    @rule(worker=WORKERS)
    def crash(self, worker: int) -> None:
        actor = self.actors[worker]
        self.lose(actor)
        self.shop.report_dead(actor.pid)
        assert self.shop.claim(actor.id) == []
        self.actors[worker] = self.hire()

    @rule(worker=WORKERS)
    def lapse(self, worker: int) -> None:
        actor = self.actors[worker]
        self.lose(actor)
        self.shop.lapse(actor.id)

    @rule()
    def tick(self) -> None:
        self.shop.tick()

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def cancel(self, pick: int) -> None:
        job_id = self.a_job(pick)
        if not self.shop.job(job_id).state.is_terminal:
            self.shop.cancel(job_id)

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def expire(self, pick: int) -> None:
        late = update(Job).where(Job.id == self.a_job(pick)).values(expires_at=func.now())
        self.shop.execute(late)
        self.shop.tick()

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def close(self, pick: int) -> None:
        self.shop.close(self.a_job(pick))

    @invariant()
    def the_house_is_in_order(self) -> None:
        if not hasattr(self, "shop"):
            return
        with self.sessions() as session:
            jobs = session.scalars(select(Job)).all()
            shards = session.scalars(select(Shard)).all()
            results = session.scalars(select(Result)).all()
            ledger = session.execute(select(Usage.job_id, Usage.idx, Usage.billed_nano)).all()
        by_job: dict[object, list[Shard]] = defaultdict(list)
        answered: dict[object, dict[int, Result]] = defaultdict(dict)
        for shard in shards:
            by_job[shard.job_id].append(shard)
        for result in results:
            answered[result.job_id][result.idx] = result
        self.epochs_only_grow(shards)
        self.results_are_of_live_leases(results)
        self.ledger_is_what_succeeded(results, ledger)
        for job in jobs:
            self.counts_add_up(job, by_job[job.id], answered[job.id])
            self.ended_jobs_do_not_change(job)

    def epochs_only_grow(self, shards: list[Shard]) -> None:
        for shard in shards:
            key = (shard.job_id, shard.shard_no)
            assert shard.epoch >= self.epochs[key]
            self.epochs[key] = shard.epoch

    def results_are_of_live_leases(self, results: list[Result]) -> None:
        for result in results:
            if (result.job_id, result.idx, result.epoch) not in self.accepted:
                self.needed_no_lease(result)

    def needed_no_lease(self, result: Result) -> None:
        """What nobody computed: a line refused when it was read, or given up."""
        assert result.failed
        assert result.epoch == 0 or b'"engine_crash"' in result.line

    def ledger_is_what_succeeded(self, results: list[Result], ledger: list[object]) -> None:
        succeeded = sorted((str(row.job_id), row.idx) for row in results if not row.failed)
        assert sorted((str(row.job_id), row.idx) for row in ledger) == succeeded  # type: ignore[attr-defined]

    def counts_add_up(self, job: Job, shards: list[Shard], answered: dict[int, Result]) -> None:
        succeeded = sum(not result.failed for result in answered.values())
        assert sum(shard.succeeded for shard in shards) == succeeded
        in_shards = sum(shard.failed for shard in shards)
        assert in_shards + job.invalid_items == len(answered) - succeeded
        whole = [shard for shard in shards if shard.state != "split"]
        places = [idx for shard in whole for idx in shard.idx if idx not in answered]
        assert len(places) == len(set(places))
        if job.state in ("in_progress", "finalizing", "cancelling", "completed"):
            assert len(places) + len(answered) == (job.total_items or 0)
        if job.state == "completed":
            assert places == []
        waiting = [shard for shard in whole if shard.state in PENDING_SHARD_STATES]
        if job.state == "in_progress":
            assert {idx for shard in waiting for idx in shard.idx} >= set(places)
        if JobState(job.state).is_terminal:
            assert waiting == []
            assert (job.output_lines or 0) == succeeded
            assert succeeded + (job.error_lines or 0) == (job.total_items or 0)

    def ended_jobs_do_not_change(self, job: Job) -> None:
        if JobState(job.state).is_terminal:
            names = set(Job.__mapper__.column_attrs.keys()) - {"expires_at"}  # moved by the test
            now = {name: getattr(job, name) for name in names}
            assert self.ended.setdefault(job.id, now) == now

    def teardown(self) -> None:
        """Left alone with one good worker, every job comes to its end, with each line once."""
        if not hasattr(self, "shop"):
            return
        for job_id in self.jobs:
            self.shop.ingest(job_id)
        for actor in self.actors:
            self.lose(actor)
            self.shop.lapse(actor.id)
        worker_id = self.shop.make_worker(pid=self.pids + 1)
        for _ in range(3):
            self.shop.tick()
            self.shop.drain(worker_id, self.note)
        for worker, pack in self.lost:
            assert self.shop.commit(worker, pack).accepted == 0
        self.the_house_is_in_order()
        for job_id in self.jobs:
            job = self.shop.job(job_id)
            assert job.state.is_terminal
            self.seen[job.state] += 1
            lines = [*self.shop.parsed(job_id, "output"), *self.shop.parsed(job_id, "error")]
            assert len(lines) == job.total
            names = [line["custom_id"] for line in lines if line["custom_id"]]
            assert len(names) == len(set(names))
            billed = sum(row.billed_nano for row in self.shop.usage(job_id).values())
            assert job.totals.billed_nano == billed


@pytest.mark.slow
def test_what_must_always_hold_holds_in_any_order_of_events(
    database_url: str, settings: Settings
) -> None:
    House.shop_settings = settings
    House.sessions = create_session_factory(database_url)
    House.seen = Counter()
    try:
        run_state_machine_as_test(House, settings=RUNS)
    finally:
        House.sessions.kw["bind"].dispose()
    # Else nothing was tested: every kind of end and of result must have come up.
    assert House.seen["accepted"] > 50
    assert {"completed", "cancelled", "expired", "late"} <= set(House.seen)


RUNS = settings(
    max_examples=int(os.environ.get("MACHINE_EXAMPLES", "16")),
    derandomize="MACHINE_EXAMPLES" not in os.environ,
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
