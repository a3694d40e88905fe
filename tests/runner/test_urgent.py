"""Urgent work on a busy worker: it is taken at once, whatever is in hand."""

from workshop import Workshop

from runner.domain.leases import Lease
from runner.services import leases
from runner.worker.lease_book import LeaseBook


def take(workshop: Workshop, worker_id: object, shards: int, above: int | None) -> list[Lease]:
    claim = leases.Claim(worker_id, workshop.model.id, shards, 60.0, True, above)  # type: ignore[arg-type]
    with workshop.sessions.begin() as session:
        return leases.claim_shards(session, claim)


def test_a_claim_for_urgent_work_takes_nothing_else(workshop: Workshop) -> None:
    workshop.make_job(8)
    worker_id = workshop.make_worker()
    assert take(workshop, worker_id, 9, above=0) == []
    urgent = workshop.make_job(4, priority=1)
    assert [lease.key.job_id for lease in take(workshop, worker_id, 9, above=0)] == [urgent]
    assert len(take(workshop, worker_id, 9, above=None)) == 2


def test_a_look_tells_the_present_priorities(workshop: Workshop) -> None:
    job_id = workshop.make_job(4, priority=2)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    with workshop.sessions() as session:
        standing = leases.look_at_leases(session, worker_id, workshop.model.id)
    assert standing.priorities == {lease.key: 2}
    assert job_id == lease.key.job_id


def test_leases_take_over_a_new_priority_or_are_given_back_to_do_so(workshop: Workshop) -> None:
    workshop.make_job(12)
    begun, waiting, same = workshop.claim(workshop.make_worker(), shards=3)
    book = LeaseBook()
    for lease in (begun, waiting, same):
        book.add(lease, 4)
    assert book.start(begun.key)
    changed = {begun.key: 5, waiting.key: 5, same.key: 0}
    assert book.reprioritise(changed) == {waiting.key}
    assert book.keys() == {begun.key, same.key}
    assert (book.lines_above(0), book.lines_above(5)) == (4, 0)
    assert book.reprioritise({**changed, begun.key: 5}) == set()
