"""The roll-up and the frozen account: the ledger told shorter, to the last nano-unit."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import delete, func, select, update
from workshop import Workshop, make_items

from runner.db.models import Job, JobAccount, LatencyDay, Usage, UsageDay
from runner.domain.latency import Measure, middle_of, percentiles_of
from runner.services import rollup
from runner.services.job_accounts import SUMS, freeze_account, job_account
from runner.services.jobs import NewJob

_KEPT = [name for name in SUMS if name in UsageDay.__table__.c]


def ledger_sums(workshop: Workshop, job_id: UUID) -> dict[str, int]:
    query = select(*(SUMS[name].label(name) for name in _KEPT)).where(Usage.job_id == job_id)
    (row,) = workshop.rows(query)
    return {name: int(value) for name, value in row._mapping.items()}


def rolled_sums(workshop: Workshop, job_id: UUID) -> dict[str, int]:
    sums = [func.coalesce(func.sum(UsageDay.__table__.c[name]), 0).label(name) for name in _KEPT]
    (row,) = workshop.rows(select(*sums).where(UsageDay.job_id == job_id))
    return {name: int(value) for name, value in row._mapping.items()}


def roll_up(workshop: Workshop, job_id: UUID) -> None:
    with workshop.sessions.begin() as session:
        rollup.roll_up(session, job_id)


def date(workshop: Workshop, job_id: UUID, idx: int, day: int) -> None:
    """Let a line have ended on a day of May."""
    noon = datetime(2026, 5, day, 12, tzinfo=UTC)
    workshop.execute(
        update(Usage).where(Usage.job_id == job_id, Usage.idx == idx).values(created_at=noon)
    )


def test_a_closed_job_is_rolled_up_to_the_last_nano_unit(workshop: Workshop) -> None:
    job_id = workshop.make_job(9)
    workshop.drain()
    rolled = rolled_sums(workshop, job_id)
    assert rolled == ledger_sums(workshop, job_id)
    totals = workshop.job(job_id).totals
    assert rolled["lines"] == totals.succeeded == 9
    assert (rolled["billed_nano"], rolled["run_cost_nano"]) == (
        totals.billed_nano,
        totals.run_cost_nano,
    )
    with workshop.sessions() as session:
        assert rollup.differences(session) == []


def test_repeating_it_changes_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(5)
    workshop.drain()
    before = rolled_sums(workshop, job_id)
    latencies = workshop.rows(select(LatencyDay).order_by(LatencyDay.measure, LatencyDay.bucket))
    roll_up(workshop, job_id)
    assert rolled_sums(workshop, job_id) == before
    again = workshop.rows(select(LatencyDay).order_by(LatencyDay.measure, LatencyDay.bucket))
    assert [row[0].lines for row in again] == [row[0].lines for row in latencies]


def test_a_job_over_midnight_has_a_row_for_each_day(workshop: Workshop) -> None:
    job_id = workshop.make_job(6)
    workshop.drain()
    for idx in range(6):
        date(workshop, job_id, idx, day=30 if idx < 2 else 31)
    with workshop.sessions.begin() as session:
        assert rollup.rebuild(session, job_id)
    days = workshop.rows(select(UsageDay.day, UsageDay.lines).order_by(UsageDay.day))
    assert [row.lines for row in days] == [2, 4]
    assert days[1].day - days[0].day == timedelta(days=1)
    assert rolled_sums(workshop, job_id) == ledger_sums(workshop, job_id)


def test_days_are_those_of_utc_whatever_the_session_s_zone_is(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    workshop.drain()
    late = datetime(2026, 5, 31, 23, 59, 59, tzinfo=UTC)
    workshop.execute(update(Usage).where(Usage.job_id == job_id).values(created_at=late))
    with workshop.sessions.begin() as session:
        session.execute(select(func.set_config("timezone", "Asia/Tokyo", True)))
        rollup.rebuild(session, job_id)
    assert workshop.scalar(select(UsageDay.day)) == late.date()


def test_late_rows_are_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    first, second = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [first])
    roll_up(workshop, job_id)
    assert rolled_sums(workshop, job_id)["lines"] == 4
    workshop.run(worker_id, [second])
    roll_up(workshop, job_id)
    assert rolled_sums(workshop, job_id) == ledger_sums(workshop, job_id)


def test_the_tick_rolls_up_a_running_job_once_a_minute(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    first, second = workshop.claim(worker_id, shards=2)
    workshop.run(worker_id, [first])
    workshop.tick()
    assert workshop.scalar(select(UsageDay.lines)) is None  # it has run for less than a minute
    earlier = func.now() - timedelta(seconds=61)
    workshop.execute(update(Job).values(in_progress_at=earlier))
    workshop.tick()
    assert workshop.scalar(select(UsageDay.lines)) == 4
    workshop.run(worker_id, [second])
    for seconds, rolled_up in ((59, 0), (61, 1)):
        with workshop.sessions.begin() as session:  # in which no time passes
            ago = func.now() - timedelta(seconds=seconds)
            session.execute(update(UsageDay).values(rolled_at=ago))
            assert rollup.roll_up_live(session) == rolled_up
    assert rolled_sums(workshop, job_id) == ledger_sums(workshop, job_id)


def test_a_difference_is_found_and_mended(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.drain()
    workshop.execute(update(UsageDay).values(billed_nano=UsageDay.billed_nano + 1))
    with workshop.sessions() as session:
        (found,) = rollup.differences(session)
    assert found.job_id == job_id
    assert found.rolled_billed_nano - found.billed_nano == 1
    workshop.keep_house()
    with workshop.sessions() as session:
        assert rollup.differences(session) == []


def test_what_retention_dropped_from_the_ledger_stays_rolled_up(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.drain()
    before, account = rolled_sums(workshop, job_id), read_account(workshop, job_id)
    workshop.execute(delete(Usage))
    with workshop.sessions.begin() as session:
        assert not rollup.rebuild(session, job_id)
    roll_up(workshop, job_id)
    assert rolled_sums(workshop, job_id) == before
    assert read_account(workshop, job_id) == account


def read_account(workshop: Workshop, job_id: UUID) -> object:
    with workshop.sessions() as session:
        return job_account(session, job_id)


def test_percentiles_are_exact_and_frozen_at_the_end(workshop: Workshop) -> None:
    job_id = workshop.make_job(make_items(10))
    worker_id = workshop.make_worker()
    for lease in workshop.claim(worker_id, shards=9):
        workshop.run(worker_id, [lease])
    for idx in range(10):
        values = {
            "queue_us": 1_000 * idx,
            "first_token_us": 0 if idx == 9 else 100 + idx,
            "decode_us": 50 * idx,
            "output_tokens": (1, 0, 0)[idx] if idx < 3 else 6,
            "total_us": 10_000 + idx,
        }
        workshop.execute(
            update(Usage).where(Usage.job_id == job_id, Usage.idx == idx).values(values)
        )
    workshop.close_all()
    account = read_account(workshop, job_id)
    assert (account.queue.p50, account.queue.p90, account.queue.p99) == (4_000, 8_000, 9_000)
    assert (account.first_token.p50, account.first_token.p99) == (104, 108)
    assert (account.per_token.p50, account.per_token.p99) == (60, 90)
    assert (account.total.p50, account.total.p99) == (10_004, 10_009)
    assert workshop.scalar(select(JobAccount.total_us)) == [10_004, 10_008, 10_009]
    workshop.execute(update(Usage).values(total_us=1))
    assert read_account(workshop, job_id) == account


def test_a_job_without_an_answer_has_an_account_of_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(3)
    workshop.cancel(job_id)
    workshop.close_all()
    account = read_account(workshop, job_id)
    assert (account.lines, account.attempts, account.total.p50) == (0, 0, None)
    with workshop.sessions.begin() as session:
        freeze_account(session, job_id)
    assert read_account(workshop, job_id) == account


def test_histograms_hold_every_line_and_tell_percentiles_to_five_percent(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(12)
    workshop.drain()
    for idx in range(12):
        workshop.execute(
            update(Usage)
            .where(Usage.job_id == job_id, Usage.idx == idx)
            .values(total_us=1_000 * 3**idx, output_tokens=2)
        )
    with workshop.sessions.begin() as session:
        rollup.rebuild(session, job_id)
    query = select(LatencyDay.bucket, LatencyDay.lines)
    total = dict(map(tuple, workshop.rows(query.where(LatencyDay.measure == Measure.TOTAL))))
    assert sum(total.values()) == 12
    told = percentiles_of(total)
    assert told.p50 == pytest.approx(1_000 * 3**5, rel=0.05)
    assert told.p90 == pytest.approx(1_000 * 3**10, rel=0.05)
    assert told.p99 == pytest.approx(1_000 * 3**11, rel=0.05)


def test_the_middle_of_a_bucket_lies_in_it_and_nothing_has_no_percentiles() -> None:
    assert [middle_of(bucket) for bucket in (0, 8, 80)] == [1, 2, 1069]
    assert percentiles_of({}).p99 is None
    assert percentiles_of({8: 99, 80: 1}).p99 == 2
    assert percentiles_of({8: 98, 80: 2}).p99 == 1069


def test_tags_are_kept_with_the_job(workshop: Workshop) -> None:
    job_id = workshop.make_job(1, tags=("nightly", "eval é"), p99_bound_ms=5)
    job = workshop.job(job_id)
    assert (job.tags, job.p99_bound_ms) == (("nightly", "eval é"), 5)
    assert NewJob.__dataclass_fields__["tags"].default == ()
