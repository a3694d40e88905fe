"""Committing finished lines: behind a fence of four predicates, once, and exactly accounted."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import ROUND_HALF_EVEN, Decimal

import pytest
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import IntegrityError, OperationalError
from workshop import Workshop, make_item, make_items

from runner.db.copy import copy_rows
from runner.db.models import Job, Shard
from runner.domain.ids import WorkerId
from runner.domain.leases import FinishedItem, Lease, LineMetrics
from runner.services.models import PriceList, set_price
from runner.services.reports import job_report
from runner.services.results import commit_results

Held = tuple[WorkerId, Lease, list[FinishedItem]]


@pytest.fixture
def held(workshop: Workshop) -> Held:
    """A worker, its only lease, and the answers to its four lines."""
    workshop.make_job(4)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    return worker_id, lease, workshop.answer(lease)


def with_epoch(pack: list[FinishedItem], epoch: int) -> list[FinishedItem]:
    return [
        replace(item, lease=replace(item.lease, key=replace(item.lease.key, epoch=epoch)))
        for item in pack
    ]


def assert_refused(workshop: Workshop, worker_id: WorkerId, pack: list[FinishedItem]) -> None:
    before = workshop.worker(worker_id).stale_results
    outcome = workshop.commit(worker_id, pack)
    assert (outcome.accepted, len(outcome.stale), outcome.done) == (0, len(pack), frozenset())
    job_id = pack[0].lease.key.job_id
    assert workshop.results(job_id) == {}
    assert workshop.usage(job_id) == {}
    assert {(shard.succeeded, shard.failed) for shard in workshop.shards(job_id)} == {(0, 0)}
    assert workshop.worker(worker_id).stale_results == before + len(pack)


def test_a_live_lease_is_accepted(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    outcome = workshop.commit(worker_id, pack)
    assert (outcome.accepted, outcome.stale, outcome.done) == (4, (), {lease.key})
    (shard,) = workshop.shards(lease.key.job_id)
    assert (shard.state, shard.worker_id, shard.lease_expires_at) == ("done", None, None)
    assert {row.epoch for row in workshop.results(lease.key.job_id).values()} == {1}


def test_an_older_epoch_is_refused_though_all_else_is_right(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    workshop.give_back(worker_id, lease)
    (again,) = workshop.claim(worker_id)
    assert (again.key.epoch, again.key.shard_no) == (2, lease.key.shard_no)
    assert_refused(workshop, worker_id, pack)
    assert_refused(workshop, worker_id, with_epoch(pack, 3))
    assert workshop.commit(worker_id, with_epoch(pack, 2)).accepted == 4


def test_another_workers_lease_is_refused_though_all_else_is_right(
    workshop: Workshop, held: Held
) -> None:
    assert_refused(workshop, workshop.make_worker(2), held[2])


def test_a_shard_that_is_not_leased_is_refused_though_all_else_is_right(
    workshop: Workshop, held: Held
) -> None:
    # No row can be so: the constraint ties the state to the worker. So it is taken away for once.
    worker_id, lease, pack = held
    with workshop.sessions() as session:
        session.execute(text("ALTER TABLE shards DROP CONSTRAINT ck_shards_lease"))
        session.execute(update(Shard).values(state="open"))
        assert commit_results(session, worker_id, pack).accepted == 0
        session.execute(update(Shard).values(state="leased"))
        assert commit_results(session, worker_id, pack).accepted == 4
        session.rollback()


def test_a_lapsed_lease_is_refused_though_nobody_has_taken_it_yet(
    workshop: Workshop, held: Held
) -> None:
    workshop.lapse()
    assert_refused(workshop, held[0], held[2])


def test_a_lease_that_went_to_another_worker_is_refused(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    workshop.lapse()
    workshop.tick()
    other = workshop.make_worker(2)
    (again,) = workshop.claim(other)
    assert_refused(workshop, worker_id, pack)
    workshop.run(other, [again])
    outcome = workshop.commit(worker_id, pack)
    assert (outcome.accepted, len(outcome.stale)) == (0, 4)
    assert {row.epoch for row in workshop.results(lease.key.job_id).values()} == {2}


def test_a_stale_lease_does_not_hold_up_the_live_ones_of_a_pack(workshop: Workshop) -> None:
    workshop.make_job(8)
    worker_id = workshop.make_worker()
    gone, live = workshop.claim(worker_id, shards=2)
    pack = [*workshop.answer(gone), *workshop.answer(live)]
    workshop.give_back(worker_id, gone)
    outcome = workshop.commit(worker_id, pack)
    assert (outcome.accepted, len(outcome.stale), outcome.done) == (4, 4, {live.key})


def test_a_repeated_commit_changes_nothing_and_is_not_stale(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    workshop.commit(worker_id, pack[:3])
    before = workshop.shards(lease.key.job_id)[0]
    outcome = workshop.commit(worker_id, pack[:3])
    assert (outcome.accepted, outcome.stale, outcome.done) == (0, (), frozenset())
    after = workshop.shards(lease.key.job_id)[0]
    assert (after.succeeded, after.billed_nano) == (before.succeeded, before.billed_nano) != (0, 0)
    assert workshop.commit(worker_id, pack).done == {lease.key}
    outcome = workshop.commit(worker_id, pack)
    assert (outcome.accepted, outcome.stale, outcome.done) == (0, (), {lease.key})
    assert workshop.worker(worker_id).stale_results == 0


def test_a_failed_commit_leaves_no_part_of_itself(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    impossible = replace(pack[3], metrics=LineMetrics(prompt_tokens=1, cached_tokens=2))
    with pytest.raises(IntegrityError):
        workshop.commit(worker_id, [*pack[:3], impossible])
    assert workshop.results(lease.key.job_id) == {}
    assert workshop.usage(lease.key.job_id) == {}


ITEM_COLUMNS = ("job_id", "idx", "custom_id", "byte_offset", "byte_length")


def test_a_connection_lost_while_rows_are_copied_is_an_error_to_try_again(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(1, ingested=False)

    def rows(pid: object) -> Iterator[tuple[object, ...]]:
        for number in range(20_000):
            if number == 10_000:
                workshop.execute(select(func.pg_terminate_backend(pid)))
            yield (job_id, number, "a", 0, 1)

    def copy() -> None:
        with workshop.sessions.begin() as session:
            pid = session.scalar(func.pg_backend_pid().select())
            copy_rows(session, "work_items", ITEM_COLUMNS, rows(pid))

    with pytest.raises(OperationalError):
        copy()
    assert workshop.scalar(text("SELECT count(*) FROM work_items")) == 0


def test_a_copy_that_waits_too_long_is_an_error_to_try_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(1)
    row = (job_id, 7, "a", 0, 1)
    with workshop.sessions() as first, workshop.sessions() as second:
        copy_rows(first, "work_items", ITEM_COLUMNS, [row])
        second.execute(func.set_config("lock_timeout", "50ms", True).select())
        with pytest.raises(OperationalError):
            copy_rows(second, "work_items", ITEM_COLUMNS, [row])


def test_each_success_has_one_ledger_row_and_no_failure_has_any(workshop: Workshop) -> None:
    lines = [*make_items(3), make_item("bad", temperature=9), make_item("worse", stream_options={})]
    job_id = workshop.make_job(lines)
    worker_id = workshop.make_worker()
    workshop.drain(worker_id)
    assert [row.failed for _, row in sorted(workshop.results(job_id).items())] == [
        *[False] * 3,
        True,
        True,
    ]
    usage = workshop.usage(job_id)
    assert sorted(usage) == [0, 1, 2]
    for row in usage.values():
        assert row.worker_id == worker_id
        assert (row.project_id, row.api_key_id) == (
            workshop.caller.project_id,
            workshop.caller.api_key_id,
        )
        assert row.attempt == 1
        assert row.output_tokens > 0


PRICES = PriceList(
    input_nano_per_million=333_333_333,
    cached_nano_per_million=111_111_111,
    output_nano_per_million=777_777_777,
    device_nano_per_hour=999_999_999_999,
)


def test_ledger_shards_job_and_report_tell_the_same_sums(
    make_workshop: Callable[..., Workshop],
) -> None:
    workshop = make_workshop()
    with workshop.sessions.begin() as session:
        set_price(session, workshop.model.id, PRICES)
    job_id = workshop.make_job([*make_items(11), make_item("bad", stream_options={})])
    worker_id = workshop.make_worker()
    while held := workshop.claim(worker_id, shards=1):
        workshop.run(worker_id, held)
        assert_sums_agree(workshop, job_id)
    workshop.close_all()
    assert workshop.job(job_id).state == "completed"
    assert_sums_agree(workshop, job_id)


def assert_sums_agree(workshop: Workshop, job_id: object) -> None:
    names = ("prompt_tokens", "cached_tokens", "output_tokens", "billed_nano", "run_cost_nano")
    usage = list(workshop.usage(job_id).values())  # type: ignore[arg-type]
    shards = workshop.shards(job_id)  # type: ignore[arg-type]
    job = workshop.job(job_id)  # type: ignore[arg-type]
    with workshop.sessions() as session:
        report = job_report(session, workshop.caller.project_id, job.id)
    for name in names:
        ledger = sum(getattr(row, name) for row in usage)
        assert sum(getattr(shard, name) for shard in shards) == ledger
        assert getattr(job.totals, name) == ledger
        assert getattr(report.job.totals, name) == ledger
    assert report.account.lines == len(usage) == job.totals.succeeded
    assert sum(use.lines for use in report.account.lanes) == len(usage)
    assert report.account.device_us == sum(row.device_us for row in usage)
    for row in usage:
        exact = (
            Decimal(row.prompt_tokens - row.cached_tokens) * PRICES.input_nano_per_million
            + Decimal(row.cached_tokens) * PRICES.cached_nano_per_million
            + Decimal(row.output_tokens) * PRICES.output_nano_per_million
        ) / 1_000_000
        assert row.billed_nano == int(exact.quantize(Decimal(1), ROUND_HALF_EVEN))


def test_a_line_is_billed_at_the_price_of_its_lease(workshop: Workshop, held: Held) -> None:
    worker_id, lease, pack = held
    metrics = LineMetrics(prompt_tokens=7, cached_tokens=3, output_tokens=5, device_us=3_600)
    workshop.commit(worker_id, [replace(pack[0], metrics=metrics)])
    row = workshop.usage(lease.key.job_id)[pack[0].idx]
    assert row.billed_nano == 4 * 50 + round(3 * 12.5) + 5 * 200
    assert row.run_cost_nano == 50


def test_a_result_accepted_after_the_cancel_stays_and_is_billed(
    workshop: Workshop, held: Held
) -> None:
    worker_id, lease, pack = held
    workshop.cancel(lease.key.job_id)
    assert workshop.commit(worker_id, pack[:2]).accepted == 2
    workshop.give_back(worker_id, lease)
    assert workshop.close(lease.key.job_id)
    job = workshop.job(lease.key.job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("cancelled", 2, 2)
    assert job.totals.billed_nano == sum(
        row.billed_nano for row in workshop.usage(lease.key.job_id).values()
    )
    assert workshop.scalar(select(Job.billed_nano)) == job.totals.billed_nano
