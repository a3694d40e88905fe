"""Any order of events under limits of money: none is passed, and nothing stays set aside.

The house of ``test_state_machine`` with a monthly budget over all of it, budgets of keys, jobs with
limits of their own, pauses and raises. Three workers claim, complete, crash and come late.
"""

import os
from collections import Counter
from contextlib import suppress
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule, run_state_machine_as_test
from sqlalchemy import func, select
from test_state_machine import ANY, WORKERS, House
from workshop import Workshop, make_item

from runner.config import Settings
from runner.db.models import Shard, Spending, Usage
from runner.db.session import create_session_factory
from runner.domain.budgets import most_billed_nano
from runner.domain.errors import InvalidRequest, StateConflict
from runner.domain.ids import JobId
from runner.domain.lines import parse_line
from runner.domain.states import PAUSABLE_JOB_STATES
from runner.services import budget_checks, budgets, pausing
from runner.services.models import price_at
from runner.services.retries import RetryLines, retry_job

PLENTY = 10**12
UNITS = st.integers(0, 12)
EXAMPLES = 6  # in the suite; MONEY_EXAMPLES asks for more, and for others each time


def bound(shop: Workshop, line: bytes) -> int:
    """What is set aside for a line."""
    with shop.sessions() as session:
        price = price_at(session, shop.model.id, session.scalar(select(func.now())))
    return most_billed_nano(parse_line(line, "/v1/chat/completions", 1 << 20).outline, price, 1024)


def set_budget(shop: Workshop, limit: int, key: bool = False) -> None:
    with shop.sessions.begin() as session:
        key_id = shop.caller.api_key_id if key else None
        budgets.set_budget(session, shop.caller.project_id, key_id, limit)


class Bank(House):
    """A house in which money can run out."""

    seen: ClassVar[Counter[str]] = Counter()

    def furnish(self) -> None:
        self.unit = bound(self.shop, make_item("n", "Tale 10 of 10", max_tokens=8))
        self.ceiling = 6 * self.unit  # the most that the month was ever allowed
        self.ceilings: dict[JobId, int] = {}
        set_budget(self.shop, self.ceiling)

    @rule(lines=st.integers(1, 9), units=UNITS, tight=st.booleans())
    def create_limited(self, lines: int, units: int, tight: bool) -> None:
        count = len(self.jobs)
        body = {"max_tokens": 8} if tight else {}
        items = [make_item(f"line-{n}", f"Tale {n} of {count}", **body) for n in range(lines)]
        limit = units * self.unit
        job_id = self.shop.make_job(items, max_cost_nano=limit, on_budget="pause")
        self.jobs.append(job_id)
        self.ceilings[job_id] = limit

    @rule(lines=st.integers(1, 9), bad=st.sets(st.integers(0, 8)), priority=st.integers(-1, 1))
    def create(self, lines: int, bad: set[int], priority: int) -> None:
        try:
            super().create(lines, bad, priority)
        except InvalidRequest as refusal:  # it would stop at once, and did not ask to pause then
            if refusal.code != budget_checks.EXCEEDED:
                raise
            self.seen["refused"] += 1

    @rule(worker=WORKERS, shards=st.integers(1, 3))
    def claim(self, worker: int, shards: int) -> None:
        held = {job_id for job_id in self.jobs if self.shop.job(job_id).pause_reason}
        actor = self.actors[worker]
        before = len(actor.held)
        super().claim(worker, shards)
        assert held.isdisjoint(lease.key.job_id for lease in actor.held[before:])
        stopped = [self.shop.job(job_id).pause_reason for job_id in self.jobs]
        self.seen["stopped"] += "budget" in stopped

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def pause(self, pick: int) -> None:
        job_id = self.a_job(pick)
        if self.shop.job(job_id).state in PAUSABLE_JOB_STATES:
            with self.sessions.begin() as session:
                pausing.pause_job(session, self.shop.caller.project_id, job_id)
            self.seen["paused"] += 1

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY, units=UNITS)
    def resume(self, pick: int, units: int) -> None:
        """As its user would: with a higher limit where it has one."""
        job_id = self.a_job(pick)
        if self.shop.job(job_id).pause_reason == "user":
            raised = None
            if job_id in self.ceilings:
                raised = self.ceilings[job_id] = self.ceilings[job_id] + units * self.unit
            with self.sessions.begin() as session:
                pausing.resume_job(session, self.shop.caller.project_id, job_id, raised)
            self.seen["resumed"] += 1

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def retry(self, pick: int) -> None:
        """As a child job with what the limit of its parent has left."""
        with self.sessions.begin() as session, suppress(StateConflict):
            with session.begin_nested():
                child = retry_job(session, self.shop.caller, self.a_job(pick), RetryLines.ALL, 4)
            self.jobs.append(child.id)
            if child.max_cost_nano is not None:
                self.ceilings[child.id] = child.max_cost_nano
            self.seen["retried"] += 1

    @rule(units=UNITS)
    def raise_budget(self, units: int) -> None:
        self.ceiling += units * self.unit
        set_budget(self.shop, self.ceiling)

    @rule(units=UNITS)
    def lower_budget(self, units: int) -> None:
        """What is spent already cannot be taken back, so the ceiling stays."""
        set_budget(self.shop, max(0, self.ceiling - units * self.unit))

    @rule(units=UNITS)
    def give_the_key_a_budget(self, units: int) -> None:
        set_budget(self.shop, units * self.unit, key=True)

    @invariant()
    def no_limit_is_passed(self) -> None:
        if not hasattr(self, "ceiling"):
            return
        with self.sessions() as session:
            spent = session.scalar(select(func.coalesce(func.sum(Usage.billed_nano), 0)))
            reserved = session.scalar(select(func.coalesce(func.sum(Shard.reserved_nano), 0)))
            payer = self.shop.caller.project_id
            noted = select(func.coalesce(func.sum(Spending.billed_nano), 0))
            assert session.scalar(noted.where(Spending.payer_id == payer)) == spent
            assert (spent or 0) + (reserved or 0) <= self.ceiling
            by_job = select(
                Shard.job_id, func.sum(Shard.billed_nano), func.sum(Shard.reserved_nano)
            ).group_by(Shard.job_id)
            for job_id, billed, held in session.execute(by_job):
                assert billed + held <= self.ceilings.get(job_id, PLENTY)

    def teardown(self) -> None:
        """With money enough every job comes to its end, and nothing is set aside any more."""
        if hasattr(self, "ceiling"):
            self._lift_limits()
        super().teardown()
        if hasattr(self, "ceiling"):
            with self.sessions() as session:
                assert not session.scalar(select(func.sum(Shard.reserved_nano)))
            self.no_limit_is_passed()
            self.seen["runs"] += 1

    def _lift_limits(self) -> None:
        self.ceiling = PLENTY
        set_budget(self.shop, PLENTY)
        set_budget(self.shop, PLENTY, key=True)
        for job_id in self.jobs:
            if self.shop.job(job_id).state in PAUSABLE_JOB_STATES:
                raised = PLENTY if job_id in self.ceilings else None
                with self.sessions.begin() as session:
                    pausing.resume_job(session, self.shop.caller.project_id, job_id, raised)
                self.ceilings[job_id] = PLENTY


def run(database_url: str, shop_settings: Settings, examples: int) -> Counter[str]:
    Bank.shop_settings = shop_settings
    Bank.sessions = create_session_factory(database_url)
    Bank.seen = Counter()
    try:
        run_state_machine_as_test(
            Bank,
            settings=settings(
                max_examples=examples or EXAMPLES,
                derandomize=not examples,  # a chance find would stop the suite for minutes
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
            ),
        )
    finally:
        Bank.sessions.kw["bind"].dispose()
    return Bank.seen


@pytest.mark.slow
def test_no_order_of_events_passes_a_limit_or_leaves_money_set_aside(
    database_url: str, settings: Settings
) -> None:
    seen = run(database_url, settings, int(os.environ.get("MONEY_EXAMPLES", "0")))
    # Else nothing was tested.
    assert seen["accepted"] > 30
    assert {"completed", "paused", "stopped"} <= set(seen), seen
