"""Any order of events in which lines take the answers of others: nothing twice, no limit passed.

The bank of ``test_money_machine``, in which reused lines have a price, with jobs full of equal
lines, and messengers that settle them at any time.
"""

import os
from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test
from sqlalchemy import select
from test_money_machine import UNITS, Bank
from test_state_machine import ANY
from workshop import make_item

from runner.config import Settings
from runner.db.models import Result, Usage
from runner.db.session import create_session_factory
from runner.domain.reuse import Dedupe
from runner.domain.rings import Bell, Ring
from runner.services.copies import run_copies
from runner.services.models import PriceList, set_price

EXAMPLES = 3  # in the suite; COPIES_EXAMPLES asks for more, and for others each time


class Echo(Bank):
    """A bank full of lines that have been answered before."""

    seen: ClassVar[Counter[str]] = Counter()

    def furnish(self) -> None:
        with self.sessions.begin() as session:
            set_price(session, self.shop.model.id, PriceList(reused_nano_per_million=900_000_000))
        super().furnish()
        for dedupe in (Dedupe.JOB, Dedupe.PROJECT, Dedupe.PROJECT):
            self.create_equal(9, 4, dedupe, None)

    @rule(
        lines=st.integers(2, 12),
        kinds=st.integers(1, 4),
        dedupe=st.sampled_from([Dedupe.JOB, Dedupe.PROJECT]),
        units=UNITS | st.none(),
    )
    def create_some(self, lines: int, kinds: int, dedupe: Dedupe, units: int | None) -> None:
        self.create_equal(lines, kinds, dedupe, units)

    def create_equal(self, lines: int, kinds: int, dedupe: Dedupe, units: int | None) -> None:
        body = {"temperature": 0, "max_tokens": 8}
        items = [make_item(f"line-{n}", f"Tale {n % kinds}", **body) for n in range(lines)]
        limit = None if units is None else units * self.unit
        job_id = self.shop.make_job(items, dedupe=dedupe, max_cost_nano=limit, on_budget="pause")
        self.jobs.append(job_id)
        if limit is not None:
            self.ceilings[job_id] = limit

    @precondition(lambda self: self.jobs)
    @rule(pick=ANY)
    def settle(self, pick: int) -> None:
        self.seen["settled"] += run_copies(self.sessions, self.a_job(pick))

    def needed_no_lease(self, result: Result) -> None:
        if b'"reused_from"' not in (result.line or b""):
            super().needed_no_lease(result)

    def teardown(self) -> None:
        if hasattr(self, "shop"):
            self.shop.listeners.append(self._hear)
        super().teardown()
        if hasattr(self, "shop"):
            with self.sessions() as session:
                reused = session.scalars(select(Usage).where(Usage.reused)).all()
                assert {row.billed_nano for row in reused} <= {900}
                self.seen["reused"] += len(reused)

    def _hear(self, ring: Ring) -> None:
        if ring.bell is Bell.COPY and ring.job_id is not None:
            run_copies(self.sessions, ring.job_id)


@pytest.mark.slow
def test_no_order_of_events_answers_a_line_twice_or_passes_a_limit(
    database_url: str, settings: Settings
) -> None:
    examples = int(os.environ.get("COPIES_EXAMPLES", "0"))
    Echo.shop_settings, Echo.seen = settings, Counter()
    Echo.sessions = create_session_factory(database_url)
    try:
        run_state_machine_as_test(Echo, settings=_runs(examples))
    finally:
        Echo.sessions.kw["bind"].dispose()
    assert {"reused", "completed"} <= set(Echo.seen), Echo.seen  # else nothing was tested


def _runs(examples: int) -> settings:
    return settings(
        max_examples=examples or EXAMPLES,
        derandomize=not examples,
        stateful_step_count=30,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
