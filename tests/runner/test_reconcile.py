"""The ticks that make up for every lost message and every silent death."""

from datetime import timedelta
from threading import Thread

from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import Job, OutboxEvent, Shard, Worker
from runner.domain.rings import Bell, Ring
from runner.services.reconcile import keep_house
from runner.services.results import commit_results


def heard_in_a_tick(workshop: Workshop) -> list[Ring]:
    workshop.rings.clear()
    workshop.tick()
    return workshop.rings


def test_a_lost_ring_for_an_unread_job_is_sent_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(3, ingested=False)
    for _ in range(2):
        assert heard_in_a_tick(workshop) == [Ring(Bell.INGEST, job_id)]


def test_a_lost_ring_for_open_shards_is_sent_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(3)
    assert heard_in_a_tick(workshop) == [Ring(Bell.COUNT, job_id), Ring(Bell.WAKE)]
    workshop.claim(workshop.make_worker())
    assert heard_in_a_tick(workshop) == [Ring(Bell.COUNT, job_id)]


def test_a_lost_ring_for_a_drained_job_is_sent_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(3)
    worker_id = workshop.make_worker()
    workshop.run(worker_id, workshop.claim(worker_id))
    for _ in range(2):
        assert heard_in_a_tick(workshop) == [Ring(Bell.FINALISE, job_id)]
    workshop.close(job_id)
    assert heard_in_a_tick(workshop) == []


def test_a_job_whose_last_worker_died_before_it_could_ask_is_closed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    with workshop.sessions.begin() as session:
        commit_results(session, worker_id, workshop.answer(lease))
    assert workshop.job(job_id).state == "in_progress"
    assert heard_in_a_tick(workshop) == [Ring(Bell.FINALISE, job_id)]
    assert workshop.close(job_id)
    assert workshop.job(job_id).state == "completed"


def test_a_lapsed_lease_is_freed_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    workshop.claim(worker_id, shards=1)
    workshop.lapse()
    workshop.tick()
    workshop.tick()
    first, second = workshop.shards(job_id)
    assert (first.state, first.attempt, first.epoch) == ("open", 1, 1)
    assert (second.state, second.attempt) == ("open", 0)
    assert workshop.worker(worker_id).state == "ready"


def test_a_lease_with_time_left_is_not_freed(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.claim(workshop.make_worker())
    workshop.tick()
    assert workshop.shards(job_id)[0].state == "leased"


def test_a_lapsed_lease_that_another_transaction_looks_at_is_left_alone(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.claim(workshop.make_worker())
    workshop.lapse()
    with workshop.sessions() as session:
        session.execute(select(Shard).with_for_update())
        workshop.tick()
    assert workshop.shards(job_id)[0].state == "leased"
    workshop.tick()
    assert workshop.shards(job_id)[0].state == "open"


def test_a_worker_that_is_silent_for_a_lease_is_buried(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    worker_id = workshop.make_worker()
    workshop.claim(worker_id)
    ago = func.now() - timedelta(seconds=workshop.settings.lease_seconds + 1)
    workshop.execute(update(Worker).values(last_seen_at=ago))
    workshop.tick()
    assert workshop.worker(worker_id).state == "dead"
    assert workshop.shards(job_id)[0].state == "open"


def test_a_lease_that_a_dead_workers_last_transaction_locks_is_freed_at_the_next_tick(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker(pid=5)
    first, _ = workshop.claim(worker_id, shards=2)
    with workshop.sessions() as session:
        query = select(Shard).where(Shard.shard_no == first.key.shard_no)
        session.execute(query.with_for_update())
        assert workshop.report_dead(pid=5) == 1
    assert [shard.state for shard in workshop.shards(job_id)] == ["leased", "open"]
    workshop.tick()
    shards = workshop.shards(job_id)
    assert [(shard.state, shard.attempt) for shard in shards] == [("open", 1), ("open", 1)]


def test_an_overdue_job_is_stopped_and_closed_by_ticks_alone(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.execute(update(Job).values(expires_at=func.now()))
    assert set(heard_in_a_tick(workshop)) == {
        Ring(Bell.CANCEL, job_id),
        Ring(Bell.FINALISE, job_id),
    }
    workshop.close_all()
    assert workshop.job(job_id).state == "expired"


def test_a_tick_with_nothing_to_do_rings_nobody(workshop: Workshop) -> None:
    workshop.make_job(b"x")
    workshop.make_job(2)
    workshop.drain()
    assert heard_in_a_tick(workshop) == []


def test_two_reconcilers_at_once_do_no_harm(workshop: Workshop) -> None:
    job_ids = [workshop.make_job(8) for _ in range(3)]
    worker_id = workshop.make_worker()
    workshop.claim(worker_id, shards=6)
    workshop.lapse()
    ticks = [Thread(target=workshop.tick) for _ in range(4)]
    for tick in ticks:
        tick.start()
    for tick in ticks:
        tick.join()
    shards = [shard for job_id in job_ids for shard in workshop.shards(job_id)]
    assert {(shard.state, shard.attempt, shard.epoch) for shard in shards} == {("open", 1, 1)}
    workshop.drain()
    assert all(workshop.job(job_id).totals.succeeded == 8 for job_id in job_ids)


def test_old_events_are_swept_and_young_ones_kept(workshop: Workshop) -> None:
    workshop.make_job(b"x")
    workshop.make_job(b"y")
    oldest = select(func.min(OutboxEvent.id)).scalar_subquery()
    ago = func.now() - timedelta(days=31)
    workshop.execute(update(OutboxEvent).where(OutboxEvent.id == oldest).values(created_at=ago))
    keep_house(workshop.sessions)
    assert workshop.scalar(select(func.count()).select_from(OutboxEvent)) == 1
