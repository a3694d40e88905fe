"""A drained worker lives on, gives back what it has not begun, and leases nothing."""

import pytest
from workshop import Workshop

from runner.domain.errors import NotFound
from runner.domain.ids import WorkerId
from runner.domain.residency import Residency
from runner.domain.rings import Bell, Ring
from runner.services import drains, leases
from runner.services.models import ModelRecord
from runner.services.residency import plan_switch


def drain(workshop: Workshop, worker_id: WorkerId) -> None:
    with workshop.sessions.begin() as session:
        drains.drain_worker(session, worker_id)


def undrain(workshop: Workshop, worker_id: WorkerId) -> None:
    with workshop.sessions.begin() as session:
        drains.undrain_worker(session, worker_id)


def listed(workshop: Workshop) -> list[drains.WorkerRecord]:
    with workshop.sessions() as session:
        return drains.list_workers(session)


def test_a_drained_worker_leases_nothing_until_it_is_undrained(workshop: Workshop) -> None:
    job_id = workshop.make_job(12)
    worker_id = workshop.make_worker()
    held = workshop.claim(worker_id)
    workshop.rings.clear()
    drain(workshop, worker_id)
    drain(workshop, worker_id)
    assert workshop.rings == [Ring(Bell.WAKE)]
    assert workshop.claim(worker_id) == []
    with workshop.sessions() as session:
        standing = leases.look_at_leases(session, worker_id, workshop.model.id)
    assert (standing.drained, standing.drain) == (True, False)
    (shown,) = listed(workshop)
    assert (shown.state, shown.lines_in_hand, shown.model) == ("drained", 4, "org/stub")
    workshop.run(worker_id, held)  # what it has begun counts
    assert "they drain" in str(workshop.job(job_id).phase_reason)
    undrain(workshop, worker_id)
    assert listed(workshop)[0].state == "ready"
    assert len(workshop.claim(worker_id)) == 1


def test_the_model_of_a_drained_worker_may_go_to_another(workshop: Workshop) -> None:
    workshop.make_job(4)
    worker_id = workshop.make_worker()
    other = workshop.make_model("org/other")
    idle = workshop.make_worker(2, model=other)

    def planned() -> ModelRecord | None:
        with workshop.sessions.begin() as session:
            return plan_switch(session, idle, Residency(other.id, 900.0, 60.0, 900.0), ())

    assert planned() is None
    drain(workshop, worker_id)
    assert planned() == workshop.model


def test_who_has_ended_cannot_be_drained(workshop: Workshop) -> None:
    worker_id = workshop.make_worker(pid=5)
    workshop.report_dead(5)
    with pytest.raises(NotFound, match="tokenmill workers ls"):
        drain(workshop, worker_id)
    assert listed(workshop) == []
