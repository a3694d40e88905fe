"""Who gets which shards, and what a worker is told about those it has."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from sqlalchemy import func, update
from workshop import Workshop

from runner.db.models import Job, Shard, Worker
from runner.domain.leases import Lease, ShardKey
from runner.domain.states import ShardState
from runner.services import leases
from runner.services.models import PriceList
from runner.services.workers import bury_silent, end_worker

MakeWorkshop = Callable[..., Workshop]


def jobs_of(held: list[Lease]) -> list[object]:
    return [lease.key.job_id for lease in held]


def look(workshop: Workshop, worker_id: object) -> leases.Standing:
    with workshop.sessions() as session:
        return leases.look_at_leases(session, worker_id, workshop.model.id)  # type: ignore[arg-type]


def renew(workshop: Workshop, worker_id: object, *held: Lease) -> None:
    with workshop.sessions.begin() as session:
        keys = [lease.key for lease in held]
        leases.renew_leases(session, worker_id, keys, 1_000.0)  # type: ignore[arg-type]


def seconds_left(workshop: Workshop, lease: Lease) -> float:
    (shard,) = [
        each for each in workshop.shards(lease.key.job_id) if each.shard_no == lease.key.shard_no
    ]
    assert shard.lease_expires_at is not None
    now = workshop.scalar(func.now().select())
    return (shard.lease_expires_at - now).total_seconds()


def test_shards_are_leased_in_order_with_all_that_running_them_needs(workshop: Workshop) -> None:
    job_id = workshop.make_job(10, priority=3)
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id, shards=2, lease_seconds=3_600)
    assert [lease.key.shard_no for lease in held] == [0, 1]
    first = held[0]
    assert (first.key.epoch, first.attempt, first.suspect, first.priority) == (1, 1, False, 3)
    assert first.idx == (0, 1, 2, 3)
    assert first.project_id == workshop.caller.project_id
    assert first.api_key_id == workshop.caller.api_key_id
    assert first.input_file_id == workshop.job(job_id).input_file_id
    assert first.price.output_nano_per_million == PriceList().output_nano_per_million
    leased = [shard for shard in workshop.shards(job_id) if shard.state == ShardState.LEASED]
    assert {shard.worker_id for shard in leased} == {worker_id}
    assert 3_500 < seconds_left(workshop, first) <= 3_600


def test_a_higher_priority_goes_first(workshop: Workshop) -> None:
    low, high, middle = (workshop.make_job(1, priority=level) for level in (-5, 5, 0))
    held = workshop.claim(workshop.make_worker(), shards=3)
    assert jobs_of(held) == [high, middle, low]


def test_the_project_that_runs_least_goes_first(workshop: Workshop) -> None:
    busy, other = workshop.make_job(8), workshop.make_caller("another")
    worker_id = workshop.make_worker()
    assert jobs_of(workshop.claim(worker_id)) == [busy]
    late = workshop.make_job(8, caller=other)
    assert jobs_of(workshop.claim(worker_id)) == [late]


def test_priority_comes_before_fairness(workshop: Workshop) -> None:
    busy, other = workshop.make_job(8, priority=1), workshop.make_caller("another")
    worker_id = workshop.make_worker()
    workshop.claim(worker_id)
    workshop.make_job(8, caller=other)
    assert jobs_of(workshop.claim(worker_id)) == [busy]


def test_the_nearest_deadline_goes_first_then_the_oldest_job(workshop: Workshop) -> None:
    oldest, urgent, third = (workshop.make_job(1) for _ in range(3))
    workshop.execute(
        update(Job).where(Job.id == urgent).values(expires_at=func.now() + timedelta(hours=1))
    )
    workshop.execute(
        update(Job).where(Job.id == third).values(expires_at=workshop.job(oldest).expires_at)
    )
    held = workshop.claim(workshop.make_worker(), shards=3)
    assert jobs_of(held) == [urgent, oldest, third]


def test_only_the_workers_own_model_is_leased(workshop: Workshop) -> None:
    other = workshop.make_model("org/other")
    worker_id = workshop.make_worker()
    workshop.execute(update(Worker).where(Worker.id == worker_id).values(model_id=other.id))
    workshop.make_job(4)
    claim = leases.Claim(worker_id, other.id, 5, 60, False)
    with workshop.sessions.begin() as session:
        assert leases.claim_shards(session, claim) == []


def test_a_job_that_is_not_in_progress_has_nothing_to_lease(workshop: Workshop) -> None:
    workshop.make_job(4, ingested=False)
    workshop.cancel(workshop.make_job(4))
    assert workshop.claim(workshop.make_worker()) == []


def test_two_sessions_at_once_lease_different_shards(workshop: Workshop) -> None:
    workshop.make_job(12)
    one, other = workshop.make_worker(1), workshop.make_worker(2)
    with workshop.sessions.begin() as first, workshop.sessions.begin() as second:
        claims = [
            leases.claim_shards(session, leases.Claim(worker, workshop.model.id, 1, 60, False))
            for session, worker in ((first, one), (second, other))
        ]
    assert [lease.key.shard_no for held in claims for lease in held] == [0, 1]


def test_no_worker_sits_on_the_tail(workshop: Workshop) -> None:
    workshop.make_job(4 * 16)
    alone = workshop.make_worker(1)
    workshop.give_back(alone, *(held := workshop.claim(alone, shards=100)))
    assert len(held) == 16
    workshop.make_worker(2)
    assert len(workshop.claim(alone, shards=100)) == 16 // (2 * 2)
    assert len(workshop.claim(alone, shards=1, holds=True)) == 1


def test_a_worker_declared_dead_leases_nothing(workshop: Workshop) -> None:
    workshop.make_job(4)
    worker_id = workshop.make_worker(pid=5)
    workshop.report_dead(pid=5)
    assert workshop.claim(worker_id) == []


def test_each_lease_of_a_shard_has_a_higher_epoch(workshop: Workshop) -> None:
    workshop.make_job(4)
    worker_id = workshop.make_worker()
    epochs = []
    for _ in range(3):
        (lease,) = workshop.claim(worker_id)
        epochs.append((lease.key.epoch, lease.attempt))
        workshop.give_back(worker_id, lease)
    (lease,) = workshop.claim(worker_id)
    workshop.lapse()
    workshop.tick()
    (again,) = workshop.claim(worker_id)
    assert epochs == [(1, 1), (2, 1), (3, 1)]
    assert [(lease.key.epoch, lease.attempt), (again.key.epoch, again.attempt)] == [(4, 1), (5, 2)]


def test_giving_back_needs_the_very_lease(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    one, other = workshop.make_worker(1), workshop.make_worker(2)
    (old,) = workshop.claim(one)
    workshop.give_back(one, old)
    (lease,) = workshop.claim(one)
    workshop.give_back(one, old)
    workshop.give_back(other, lease)
    (shard,) = workshop.shards(job_id)
    assert (shard.state, shard.epoch, shard.attempt) == (ShardState.LEASED, 2, 1)
    workshop.give_back(one, lease)
    workshop.give_back(one, lease)
    (shard,) = workshop.shards(job_id)
    assert (shard.state, shard.attempt, shard.worker_id) == (ShardState.OPEN, 0, None)


def test_a_heartbeat_extends_the_leases_in_hand_and_no_other(workshop: Workshop) -> None:
    workshop.make_job(16)
    worker_id, other = workshop.make_worker(1), workshop.make_worker(2)
    held, unknown, lapsed, foreign = (
        workshop.claim(worker, lease_seconds=30)[0] for worker in (worker_id,) * 3 + (other,)
    )
    workshop.execute(
        update(Shard)
        .where(Shard.shard_no == lapsed.key.shard_no)
        .values(lease_expires_at=func.now() - timedelta(seconds=1))
    )
    stale = ShardKey(held.key.job_id, unknown.key.shard_no, unknown.key.epoch - 1)
    with workshop.sessions.begin() as session:
        keys = [held.key, lapsed.key, foreign.key, stale]
        leases.renew_leases(session, worker_id, keys, 1_000.0)
    assert seconds_left(workshop, held) > 900
    assert seconds_left(workshop, unknown) < 31
    assert seconds_left(workshop, lapsed) < 0
    assert seconds_left(workshop, foreign) < 31


def test_renewing_nothing_is_harmless(workshop: Workshop) -> None:
    renew(workshop, workshop.make_worker())


def test_a_look_tells_what_is_live_and_what_has_ended(workshop: Workshop) -> None:
    first, second = workshop.make_job(4), workshop.make_job(4)
    worker_id = workshop.make_worker()
    held = {lease.key.job_id: lease.key for lease in workshop.claim(worker_id, shards=2)}
    assert look(workshop, worker_id) == leases.Standing(
        live=frozenset(held.values()),
        ended=frozenset(),
        paused=frozenset(),
        priorities=dict.fromkeys(held.values(), 0),
        urgent_above=None,
        suspect_waits=False,
        drain=False,
    )
    workshop.cancel(second)
    assert look(workshop, worker_id).ended == {held[second]}
    workshop.lapse(worker_id)
    assert look(workshop, worker_id).live == frozenset()
    assert first in held


def test_a_look_tells_that_more_urgent_work_waits(workshop: Workshop) -> None:
    workshop.make_job(4)
    worker_id = workshop.make_worker()
    workshop.claim(worker_id)
    workshop.make_job(4, priority=0)
    assert look(workshop, worker_id).urgent_above is None
    workshop.make_job(4, priority=1)
    assert look(workshop, worker_id).urgent_above == 0


def test_a_look_tells_of_an_order_to_drain(workshop: Workshop) -> None:
    worker_id = workshop.make_worker()
    workshop.execute(update(Worker).where(Worker.id == worker_id).values(state="draining"))
    assert look(workshop, worker_id).drain


def test_a_dead_workers_leases_are_free_at_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(12)
    worker_id = workshop.make_worker(pid=5)
    other = workshop.make_worker(pid=6)
    workshop.claim(worker_id, shards=2)
    workshop.claim(other, shards=1)
    assert workshop.report_dead(pid=5, host="elsewhere") == 0
    assert workshop.report_dead(pid=5) >= 1
    assert workshop.report_dead(pid=5) == 0
    states = [shard.state for shard in workshop.shards(job_id)]
    assert states.count("leased") == 1
    assert (workshop.worker(worker_id).state, workshop.worker(other).state) == ("dead", "ready")


def test_a_worker_that_ended_in_order_is_not_declared_dead(workshop: Workshop) -> None:
    worker_id = workshop.make_worker(pid=5)
    with workshop.sessions.begin() as session:
        end_worker(session, worker_id, "drained")
    assert workshop.report_dead(pid=5) == 0
    row = workshop.worker(worker_id)
    assert (row.state, row.end_reason) == ("ended", "drained")


def test_a_silent_worker_is_buried_and_a_late_beat_saves_it(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    silent, alive = workshop.make_worker(1), workshop.make_worker(2)
    workshop.claim(silent)
    long_ago = func.now() - timedelta(seconds=61)
    workshop.execute(update(Worker).where(Worker.id == silent).values(last_seen_at=long_ago))
    with workshop.sessions.begin() as session:
        assert bury_silent(session, 60) == 1
    assert workshop.shards(job_id)[0].state == "open"
    assert workshop.worker(silent).end_reason == "silent"
    assert workshop.worker(alive).state == "ready"


@pytest.mark.parametrize("lines", [1, 9])
def test_lines_with_a_result_are_not_read_again(workshop: Workshop, lines: int) -> None:
    workshop.make_job(lines)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    first = workshop.answer(lease)[0]
    workshop.commit(worker_id, [first])
    left = [idx for idx in lease.idx if idx != first.idx]
    assert [item.idx for item in workshop.read(lease)] == left
