"""The counting pass: leased like shards, shared by workers, written once whatever happens."""

from collections.abc import Sequence
from threading import Barrier, Thread

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop, make_item

from runner.db.models import JobEstimate, Shard, ShardCount
from runner.domain.counts import Count, LineCounter, LineKind
from runner.domain.ids import JobId
from runner.domain.leases import ItemInput
from runner.domain.rings import Bell, Ring
from runner.domain.states import ShardState
from runner.inference import open_counter
from runner.services.counting import run_count
from runner.services.job_estimates import finish_count
from runner.services.job_records import JobRecord
from runner.services.shard_counts import claim_counts, too_long_lines, total_count, write_counts


def lines(count: int, words: int = 3) -> list[bytes]:
    """Lines of so many words, and of two tokens of output each."""
    return [make_item(f"line-{n}", "word " * words, max_tokens=2) for n in range(count)]


def count(workshop: Workshop, job_id: JobId) -> int:
    return run_count(workshop.sessions, workshop.settings, open_counter, job_id)


def total(workshop: Workshop, job_id: JobId) -> Count:
    with workshop.sessions() as session:
        return total_count(session, job_id)


def given_is_exact(job: JobRecord) -> bool:
    assert job.estimate is not None
    return job.estimate.given.is_exact and job.estimate.is_counted


def test_a_job_that_was_read_asks_to_be_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    assert Ring(Bell.COUNT, job_id) in workshop.rings
    job = workshop.job(job_id)
    assert job.estimate is not None
    assert (job.estimate.given.lines, job.estimate.given.output_most) == (9, 18)
    assert not job.estimate.is_counted


def test_the_count_makes_the_estimate_exact(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    assert count(workshop, job_id) == 3  # shards of four lines
    job = workshop.job(job_id)
    assert given_is_exact(job)
    assert job.estimate is not None
    assert job.estimate.given.input_tokens == job.estimate.given.input_most == 27
    assert job.estimate.given.longest == 3
    assert job.estimate.given.made_at is not None


def test_counting_again_changes_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    count(workshop, job_id)
    before = workshop.job(job_id).estimate
    assert count(workshop, job_id) == 0
    assert workshop.job(job_id).estimate == before


def test_a_job_may_run_to_its_end_before_it_is_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    workshop.drain()
    assert count(workshop, job_id) == 0
    job = workshop.job(job_id)
    assert job.estimate is not None
    assert not job.estimate.is_counted
    assert job.estimate.actual is not None
    assert job.estimate.actual.input_tokens == 27


def test_a_job_that_runs_is_counted_all_the_same(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    worker = workshop.make_worker()
    workshop.run(worker, workshop.claim(worker, shards=2))
    assert count(workshop, job_id) == 3
    assert total(workshop, job_id).input_tokens == 27


def test_what_a_killed_worker_had_claimed_is_counted_when_its_lease_has_lapsed(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(lines(9))
    with workshop.sessions.begin() as session:
        claimed = claim_counts(session, job_id, 2, lease_seconds=60)
    assert len(claimed) == 2
    assert count(workshop, job_id) == 1
    assert not given_is_exact(workshop.job(job_id))
    workshop.execute(update(ShardCount).values(lease_expires_at=func.now()))
    assert count(workshop, job_id) == 2
    assert total(workshop, job_id).input_tokens == 27
    assert given_is_exact(workshop.job(job_id))


def test_a_worker_that_was_overtaken_writes_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(4))
    with workshop.sessions.begin() as session:
        late = claim_counts(session, job_id, 1, lease_seconds=-1)
    count(workshop, job_id)
    with workshop.sessions.begin() as session:
        assert write_counts(session, [(late[0], Count(lines=1, input_tokens=999))]) == 0
    assert total(workshop, job_id).input_tokens == 12


def test_of_two_that_write_under_leases_of_one_shard_the_last_lease_counts(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(lines(4))
    with workshop.sessions.begin() as session:
        first = claim_counts(session, job_id, 1, lease_seconds=-1)[0]
        second = claim_counts(session, job_id, 1, lease_seconds=60)[0]
    right = Count(lines=4, input_tokens=12, bounded_lines=4)
    with workshop.sessions.begin() as session:
        assert write_counts(session, [(first, right)]) == 0
        assert write_counts(session, [(second, right)]) == 1
        assert write_counts(session, [(second, right)]) == 0


def test_several_workers_share_the_shards_and_count_each_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(200))
    written: list[int] = []
    start = Barrier(4)

    def work() -> None:
        start.wait()
        written.append(count(workshop, job_id))

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(written) == 50
    assert total(workshop, job_id).input_tokens == 600
    assert given_is_exact(workshop.job(job_id))


def test_a_prefix_is_found_across_the_border_of_shards(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(8, words=40))
    count(workshop, job_id)
    assert total(workshop, job_id).cached_tokens == 7 * 32


def test_a_shard_that_was_split_is_counted_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(4))
    workshop.execute(update(Shard).values(state=ShardState.SPLIT))
    with workshop.sessions.begin() as session:
        half = session.scalars(select(Shard)).one()
        session.add(
            Shard(
                job_id=job_id,
                shard_no=1,
                model_id=half.model_id,
                price_id=half.price_id,
                idx=half.idx[:2],
                state=ShardState.OPEN,
            )
        )
    count(workshop, job_id)
    assert total(workshop, job_id).lines == 4


class _LimitedCounter:
    """A counter that finds lines with an odd number too long."""

    def count(
        self, kind: LineKind, lines: Sequence[ItemInput], before: ItemInput | None = None
    ) -> Count:
        odd = tuple(item.idx for item in lines if item.idx % 2)
        good = len(lines) - len(odd)
        return Count(lines=good, too_long=len(odd), too_long_idx=odd, bounded_lines=good)


def open_limited(path: str, context: int) -> LineCounter:
    return _LimitedCounter()


def test_too_long_lines_are_named_up_to_a_number_and_told_in_all(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(40))
    run_count(workshop.sessions, workshop.settings, open_limited, job_id)
    job = workshop.job(job_id)
    assert job.estimate is not None
    assert (job.estimate.too_long, job.estimate.given.lines) == (20, 20)
    with workshop.sessions() as session:
        assert too_long_lines(session, job_id, limit=3) == [1, 3, 5]


def test_a_worker_alone_calls_one_other(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(200))
    workshop.rings.clear()
    count(workshop, job_id)
    assert workshop.rings.count(Ring(Bell.COUNT, job_id)) == 1


def test_a_worker_in_company_calls_nobody(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(200))
    with workshop.sessions.begin() as session:
        claim_counts(session, job_id, 1, lease_seconds=60)
    workshop.rings.clear()
    count(workshop, job_id)
    assert workshop.rings == []


def test_each_tick_rings_for_what_is_not_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(9))
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.COUNT, job_id) in workshop.rings
    count(workshop, job_id)
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.COUNT, job_id) not in workshop.rings


def test_the_estimate_is_finished_by_the_next_look_if_the_last_writer_died(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(lines(4))
    with workshop.sessions.begin() as session:
        lease = claim_counts(session, job_id, 1, lease_seconds=60)[0]
        write_counts(session, [(lease, Count(lines=4, input_tokens=12, bounded_lines=4))])
    assert count(workshop, job_id) == 0
    assert given_is_exact(workshop.job(job_id))
    with workshop.sessions.begin() as session:
        assert not finish_count(session, job_id)


@pytest.mark.parametrize("end", ["cancel", "nothing"])
def test_a_job_that_nobody_runs_is_not_counted(workshop: Workshop, end: str) -> None:
    job_id = workshop.make_job(lines(4), ingested=end == "cancel")
    if end == "cancel":
        workshop.cancel(job_id)
    workshop.rings.clear()
    assert count(workshop, job_id) == 0
    assert workshop.rings == []  # or workers would call each other about it for ever
    query = select(func.count()).select_from(JobEstimate)
    assert workshop.scalar(query) == (1 if end == "cancel" else 0)
