"""Workers that die of a line: the guilty one is found, its neighbours complete."""

from collections.abc import Callable
from math import log2
from threading import Thread

import pytest
from sqlalchemy import func, select
from workshop import Workshop, make_item, make_items

from runner.db.models import Shard, Usage
from runner.domain.leases import Lease
from runner.domain.states import ShardState
from runner.services import recovery
from runner.services.leases import Claim, claim_shards, look_at_leases

MakeWorkshop = Callable[..., Workshop]

POISON = "POISON"
SHARD = 64


class Ward:
    """Workers that take as much as they can and die when a poisoned line begins to run."""

    def __init__(self, workshop: Workshop, shards: int = 4) -> None:
        self.workshop = workshop
        self.deaths = 0
        self.taken: list[list[Lease]] = []
        self._shards = shards

    def run(self) -> None:
        """Let one worker after the other run until no work is left."""
        workshop, pid = self.workshop, 1
        worker_id = workshop.make_worker(pid)
        while held := workshop.claim(worker_id, shards=self._shards):
            self.taken.append(held)
            items = [(lease, workshop.read(lease)) for lease in held]
            if any(POISON.encode() in item.data for _, read in items for item in read):
                self.deaths += 1
                assert self.deaths < 100
                workshop.report_dead(pid)
                pid += 1
                worker_id = workshop.make_worker(pid)
            else:
                workshop.run(worker_id, held)
        workshop.tick()
        workshop.close_all()


def lines_with_poison(count: int, *places: int) -> list[bytes]:
    lines = make_items(count)
    for place in places:
        lines[place] = make_item(f"line-{place}", POISON)
    return lines


@pytest.mark.parametrize("place", [0, 37, 63])
def test_the_guilty_line_is_found_among_64_and_only_it_fails(
    make_workshop: MakeWorkshop, place: int
) -> None:
    workshop = make_workshop(shard_lines=SHARD)
    job_id = workshop.make_job(lines_with_poison(3 * SHARD, SHARD + place))
    ward = Ward(workshop)
    ward.run()
    assert ward.deaths <= 2 + log2(SHARD) + 2  # suspected, halved, and then alone twice
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 3 * SHARD - 1, 1)
    assert list(workshop.errors(job_id)) == [(f"line-{SHARD + place}", "engine_crash")]
    (line,) = workshop.parsed(job_id, "error")
    assert line["response"]["status_code"] == 500
    assert workshop.scalar(select(func.count()).select_from(Usage)) == 3 * SHARD - 1


@pytest.mark.parametrize("others", [0, 3])
def test_a_line_that_stands_alone_survives_one_loss_and_fails_at_the_next(
    workshop: Workshop, others: int
) -> None:
    """An operator's kill may meet an innocent; its neighbours in the shard have finished."""
    pid = 0
    for losses, failed in ((3, 0), (4, 1)):
        job_id = workshop.make_job(1 + others)
        for _ in range(losses):
            pid += 1
            worker_id = workshop.make_worker(pid)
            (lease,) = workshop.claim(worker_id)
            if lease.attempt == 3:
                workshop.commit(worker_id, workshop.answer(lease)[1:])
            workshop.report_dead(pid)
        workshop.drain(workshop.make_worker(1000 + pid))
        totals = workshop.job(job_id).totals
        assert (totals.succeeded, totals.failed) == (1 + others - failed, failed)
        assert len(workshop.usage(job_id)) == 1 + others - failed


def test_several_guilty_lines_are_all_found(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(shard_lines=16)
    job_id = workshop.make_job(lines_with_poison(48, 3, 4, 40))
    Ward(workshop).run()
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 45, 3)
    assert [name for name, _ in workshop.errors(job_id)] == ["line-3", "line-4", "line-40"]


def test_a_suspect_is_leased_alone(make_workshop: MakeWorkshop) -> None:
    workshop = make_workshop(shard_lines=8)
    workshop.make_job(lines_with_poison(32, 9))
    ward = Ward(workshop)
    ward.run()
    with_suspect = [held for held in ward.taken if any(lease.suspect for lease in held)]
    assert with_suspect
    assert all(len(held) == 1 for held in with_suspect)


def test_a_worker_that_holds_leases_gets_no_suspect(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    for pid in (1, 2):
        workshop.claim(workshop.make_worker(pid))
        workshop.report_dead(pid)
    assert [shard.suspect for shard in workshop.shards(job_id)] == [True, False]
    worker_id = workshop.make_worker(3)
    (innocent,) = workshop.claim(worker_id, shards=5, holds=True)
    assert innocent.key.shard_no == 1
    workshop.run(worker_id, [innocent])
    (suspect,) = workshop.claim(worker_id, shards=5)
    assert (suspect.suspect, suspect.key.shard_no, suspect.attempt) == (True, 0, 3)
    workshop.run(worker_id, [suspect])
    workshop.close_all()
    assert workshop.job(job_id).totals.succeeded == 8


def test_where_another_has_just_taken_the_suspect_other_work_is_leased(workshop: Workshop) -> None:
    workshop.make_job(8)
    for pid in (1, 2):
        workshop.claim(workshop.make_worker(pid))
        workshop.report_dead(pid)
    one, other = workshop.make_worker(3), workshop.make_worker(4)
    with workshop.sessions.begin() as session:
        (suspect,) = claim_shards(session, Claim(one, workshop.model.id, 1, 60, False))
        (innocent,) = workshop.claim(other)
    assert (suspect.suspect, innocent.suspect) == (True, False)


def test_one_death_makes_nobody_a_suspect(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    workshop.claim(workshop.make_worker(1))
    workshop.report_dead(1)
    (shard,) = workshop.shards(job_id)
    assert (shard.state, shard.suspect, shard.attempt) == (ShardState.OPEN, False, 1)


def test_a_suspect_that_waits_for_long_is_announced(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    for pid in (1, 2):
        workshop.claim(workshop.make_worker(pid))
        workshop.report_dead(pid)
    worker_id = workshop.make_worker(3)

    def waits() -> bool:
        with workshop.sessions() as session:
            return look_at_leases(session, worker_id, workshop.model.id).suspect_waits

    assert not waits()
    workshop.execute(
        Shard.__table__.update()
        .where(Shard.job_id == job_id)
        .values(not_before=func.now() - func.make_interval(0, 0, 0, 0, 0, 1))
    )
    assert waits()


def test_lines_finished_before_a_death_are_kept_and_not_run_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    for pid in (1, 2):
        worker_id = workshop.make_worker(pid)
        (lease,) = workshop.claim(worker_id)
        workshop.commit(worker_id, workshop.answer(lease)[:1])
        workshop.report_dead(pid)
    (shard,) = workshop.shards(job_id)
    assert (shard.state, shard.succeeded, shard.suspect) == (ShardState.OPEN, 2, True)
    (lease,) = workshop.claim(workshop.make_worker(3))
    assert len(workshop.read(lease)) == 2
    workshop.report_dead(3)
    halves = workshop.shards(job_id)[1:]
    assert [len(half.idx) for half in halves] == [1, 1]
    workshop.drain(workshop.make_worker(4))
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded) == ("completed", 4)
    assert len(workshop.usage(job_id)) == 4


def test_halves_of_two_shards_get_different_numbers_when_halved_at_once(
    workshop: Workshop,
) -> None:
    job_id = workshop.make_job(8)
    for pid in (1, 2):
        workshop.claim(workshop.make_worker(pid), shards=2)
        workshop.report_dead(pid)
    one, other = workshop.make_worker(3), workshop.make_worker(4)
    workshop.claim(one)
    workshop.claim(other)
    freed: list[int] = []

    def requeue_other() -> None:
        with workshop.sessions.begin() as second:
            freed.append(recovery.requeue_leases_of(second, other))

    thread = Thread(target=requeue_other)
    with workshop.sessions.begin() as first:
        assert recovery.requeue_leases_of(first, one) == 1
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()  # it waits for its turn
    thread.join(90)
    assert freed == [1]
    shards = workshop.shards(job_id)
    assert [shard.shard_no for shard in shards] == [0, 1, 2, 3, 4, 5]
    assert sorted(idx for shard in shards[2:] for idx in shard.idx) == list(range(8))


def test_a_suspect_of_a_cancelled_job_is_dropped(workshop: Workshop) -> None:
    job_id = workshop.make_job(4)
    for pid in (1, 2, 3):
        workshop.claim(workshop.make_worker(pid))
        if pid == 3:
            workshop.cancel(job_id)
        workshop.report_dead(pid)
    assert [shard.state for shard in workshop.shards(job_id)] == [ShardState.DROPPED]
    workshop.close(job_id)
    assert workshop.job(job_id).state == "cancelled"
    assert len(list(workshop.errors(job_id))) == 4
