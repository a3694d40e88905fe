"""Jobs whose lines name several models: each model has its shards, workers, price and figures."""

import pytest
from workshop import MODEL, Workshop, make_item

from runner.domain import pricing
from runner.domain.ids import JobId
from runner.domain.pricing import Quantities
from runner.inference import open_counter
from runner.services.alerts import alerts_of, raise_alerts
from runner.services.costs import Scope, spent_by
from runner.services.counting import run_count
from runner.services.models import ModelRecord, PriceList, price_now
from runner.services.reports import job_report
from runner.services.retries import RetryLines, retry_job

OTHER = "org/other"
DEAR = PriceList(900_000_001, 300_000_001, 7_000_000_001, 1_000_000_000)


@pytest.fixture
def other(workshop: Workshop) -> ModelRecord:
    """A second model, at other prices."""
    return workshop.make_model(OTHER, prices=DEAR)


def make_mixed_job(workshop: Workshop, **fields: object) -> JobId:
    """Six lines of the workshop's model and five of the other, in turn."""
    names = [MODEL, OTHER] * 5 + [MODEL]
    lines = [
        make_item(f"line-{n}", f"Tale {n}.", model=name, max_tokens=4)
        for n, name in enumerate(names)
    ]
    return workshop.make_job(lines, **fields)


def price_of(workshop: Workshop, model: ModelRecord) -> pricing.Price:
    with workshop.sessions() as session:
        return price_now(session, model.id)


def test_workers_take_the_lines_of_their_model_and_bill_them_by_its_price(
    workshop: Workshop, other: ModelRecord
) -> None:
    job_id = make_mixed_job(workshop, max_cost_nano=10**12)  # so each line is bounded, too
    first, second = workshop.make_worker(1), workshop.make_worker(2, model=other)
    taken = workshop.claim(first, shards=9)
    assert {idx for lease in taken for idx in lease.idx} == {0, 2, 4, 6, 8, 10}
    workshop.run(first, taken)
    assert workshop.claim(first) == []
    assert workshop.job(job_id).totals.succeeded == 6
    workshop.drain(second)
    job = workshop.job(job_id)
    assert (job.state, job.model, job.models) == ("completed", None, (OTHER, MODEL))
    for idx, row in workshop.usage(job_id).items():
        model = other if idx % 2 else workshop.model
        price = price_of(workshop, model)
        assert (row.model_id, row.price_id) == (model.id, price.id)
        used = Quantities(row.prompt_tokens, row.cached_tokens, row.output_tokens)
        assert row.billed_nano == pricing.billed_nano(price, used)


def test_what_is_told_by_model_adds_up_to_the_job(workshop: Workshop, other: ModelRecord) -> None:
    job_id = make_mixed_job(workshop)
    project_id = workshop.caller.project_id
    workshop.drain()
    with workshop.sessions() as session:
        running = job_report(session, project_id, job_id).models
    assert {name: share.succeeded for name, share in running.items()} == {MODEL: 6, OTHER: 0}
    workshop.drain(workshop.make_worker(2, model=other))
    with workshop.sessions() as session:
        report = job_report(session, project_id, job_id)
        groups = spent_by(session, Scope(project_id), ("model",))
    totals = report.job.totals
    assert sum(share.billed_nano for share in report.models.values()) == totals.billed_nano
    assert {group.group[0]: group.billed_nano for group in groups} == {
        name: share.billed_nano for name, share in report.models.items()
    }
    assert {name: share.succeeded for name, share in report.models.items()} == {MODEL: 6, OTHER: 5}


def test_each_model_is_counted_and_estimated_by_itself(
    workshop: Workshop, other: ModelRecord
) -> None:
    job_id = make_mixed_job(workshop)
    run_count(workshop.sessions, workshop.settings, open_counter, job_id)
    workshop.tick()
    given = workshop.job(job_id).estimate
    assert given is not None
    assert given.is_counted
    assert (given.given.lines, given.given.output_most, given.given.is_exact) == (11, 44, True)
    workshop.drain()
    workshop.drain(workshop.make_worker(2, model=other))
    job = workshop.job(job_id)
    assert job.estimate is not None
    assert job.estimate.actual is not None
    actual = job.estimate.actual
    assert (actual.lines, actual.input_tokens) == (11, given.given.input_tokens)
    assert actual.billed_nano == job.totals.billed_nano <= given.given.billed_most


def test_a_job_tells_which_of_its_models_has_no_worker(
    workshop: Workshop, other: ModelRecord
) -> None:
    job_id = make_mixed_job(workshop)

    def told() -> tuple[str, str | None, int | None]:
        job = workshop.job(job_id)
        return job.phase, job.phase_reason, job.queue_position

    lack = f"Waiting for a worker of {OTHER}; those that run have another model loaded."
    worker_id = workshop.make_worker()
    assert told() == ("waiting", f"{lack} Next: waiting for room in a worker.", 1)
    held = workshop.claim(worker_id, shards=9)
    assert told() == ("in_progress", lack, None)
    workshop.run(worker_id, held)
    assert told() == ("waiting", lack, 1)
    workshop.claim(workshop.make_worker(2, model=other))
    assert told()[:2] == ("in_progress", None)


def test_a_deadline_at_risk_names_the_model_that_nobody_serves(
    workshop: Workshop, other: ModelRecord
) -> None:
    job_id = make_mixed_job(workshop, completion_window="30m")
    workshop.make_worker()
    with workshop.sessions.begin() as session:
        assert raise_alerts(session) == 1
        (alert,) = alerts_of(session, [job_id])[job_id]
    assert alert.message.startswith(f"No worker serves {OTHER}; 5 lines are left")


def test_a_retry_has_the_models_of_the_lines_that_it_takes(
    workshop: Workshop, other: ModelRecord
) -> None:
    job_id = make_mixed_job(workshop)
    workshop.drain()
    workshop.cancel(job_id)
    workshop.close_all()
    with workshop.sessions.begin() as session:
        child = retry_job(session, workshop.caller, job_id, RetryLines.UNFINISHED, 2)
    assert (child.model, child.total) == (OTHER, 5)
    assert {shard.model_id for shard in workshop.shards(child.id)} == {other.id}
    workshop.drain(workshop.make_worker(2, model=other))
    assert workshop.job(child.id).state == "completed"


def test_half_of_a_split_shard_keeps_its_model(workshop: Workshop, other: ModelRecord) -> None:
    job_id = make_mixed_job(workshop)
    for pid in (1, 2, 3):
        workshop.claim(workshop.make_worker(pid, model=other))
        workshop.report_dead(pid)
    shards = workshop.shards(job_id)
    halves = [shard for shard in shards if shard.shard_no >= 4]
    assert [shard.model_id for shard in halves] == [other.id] * 2
    (taken,) = workshop.claim(workshop.make_worker(4, model=other), shards=9)
    assert (taken.model_id, taken.suspect) == (other.id, True)
