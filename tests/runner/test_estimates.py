"""Estimates of real files and jobs on real Postgres."""

import pytest
from workshop import CHAT, Workshop, make_item, make_items

from runner.domain.errors import NotFound
from runner.domain.estimate import Basis, Estimate
from runner.domain.ids import JobId
from runner.inference import open_counter
from runner.services.counting import run_count
from runner.services.estimate_records import EstimateRecord
from runner.services.estimates import Order, quick


def glance(workshop: Workshop, lines: object, endpoint: str = CHAT) -> Estimate | None:
    file_id = workshop.make_file(lines)  # type: ignore[arg-type]
    with workshop.sessions() as session:
        return quick(session, Order(workshop.caller.project_id, file_id, endpoint))


def test_a_glance_at_a_small_file_sees_all_of_it(workshop: Workshop) -> None:
    told = glance(workshop, [make_item(f"line-{n}", max_tokens=5) for n in range(20)])
    assert told is not None
    assert (told.lines, told.output_most, told.basis) == (20, 100, Basis.MAX_TOKENS)
    assert 0 < told.input_tokens < told.input_most
    assert 0 < told.billed.likely <= told.billed_most
    assert not told.is_exact


def test_a_glance_at_a_large_file_goes_on_as_it_began(workshop: Workshop) -> None:
    lines = [make_item(f"line-{n:05}", "word " * 100, max_tokens=3) for n in range(5000)]
    told = glance(workshop, lines)
    assert told is not None
    assert abs(told.lines - 5000) <= 2
    assert abs(told.output_most - 15_000) <= 6


def test_lines_that_cannot_run_are_not_counted(workshop: Workshop) -> None:
    told = glance(workshop, [b"{", *make_items(2), b"[]"])
    assert told is not None
    assert told.lines == 2


@pytest.mark.parametrize("lines", [b"", [b"{"], [make_item("a", model="org/none")]])
def test_a_file_of_which_nothing_can_run_has_no_estimate(workshop: Workshop, lines: object) -> None:
    assert glance(workshop, lines) is None


def test_a_file_of_another_project_has_no_estimate(workshop: Workshop) -> None:
    file_id = workshop.make_file(make_items(1), workshop.make_caller("other"))
    with workshop.sessions() as session, pytest.raises(NotFound):
        quick(session, Order(workshop.caller.project_id, file_id, CHAT))


def estimated(workshop: Workshop, job_id: JobId) -> EstimateRecord:
    record = workshop.job(job_id).estimate
    assert record is not None
    return record


def counted(workshop: Workshop, job_id: JobId) -> Estimate:
    run_count(workshop.sessions, workshop.settings, open_counter, job_id)
    return estimated(workshop, job_id).given


def tales(count: int, words: int = 3, **body: object) -> list[bytes]:
    return [make_item(f"line-{n}", f"tale {n} " + "word " * words, **body) for n in range(count)]


def test_a_counted_estimate_is_exact_against_the_run(workshop: Workshop) -> None:
    job_id = workshop.make_job([*tales(10, max_tokens=4), make_item("odd", n=0)])
    given = counted(workshop, job_id)
    assert estimated(workshop, job_id).refused == 1
    workshop.drain()
    actual = estimated(workshop, job_id).actual
    assert actual is not None
    assert (actual.lines, actual.input_tokens) == (given.lines, given.input_tokens) == (10, 50)
    assert given.is_exact
    assert actual.output_tokens <= given.output_most
    assert given.billed.low <= actual.billed_nano <= given.billed_most


def test_the_end_of_a_job_teaches_the_next_one(workshop: Workshop) -> None:
    first = workshop.make_job(tales(120, max_tokens=64))
    assert counted(workshop, first).basis is Basis.MAX_TOKENS
    workshop.drain()
    took = estimated(workshop, first).actual
    assert took is not None
    second = workshop.make_job(tales(240, max_tokens=64))
    given = counted(workshop, second)
    assert (given.basis, given.history_lines) == (Basis.MODEL, 120)
    told = glance(workshop, tales(240, max_tokens=64))
    assert told is not None
    assert told.output == given.output
    assert told.input_tokens == pytest.approx(given.input_tokens, rel=0.02)
    assert given.output.likely == pytest.approx(2 * took.output_tokens, rel=0.01)
    assert given.output.low < given.output.likely < given.output.high < given.output_most
    workshop.drain()
    actual = estimated(workshop, second).actual
    assert actual is not None
    assert given.output.low <= actual.output_tokens <= given.output.high


def test_lines_without_max_tokens_learn_from_their_like(workshop: Workshop) -> None:
    first = workshop.make_job(tales(120))
    before = counted(workshop, first)
    assert before.output.likely == before.output_most > 100_000
    workshop.drain()
    took = estimated(workshop, first).actual
    assert took is not None
    given = counted(workshop, workshop.make_job(tales(60)))
    assert given.output.likely == pytest.approx(took.output_tokens / 2, rel=0.01)


def test_another_project_learns_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(tales(120, max_tokens=64))
    counted(workshop, job_id)
    workshop.drain()
    other = workshop.make_caller("other")
    strange = workshop.make_job(tales(8, max_tokens=64), caller=other)
    assert counted(workshop, strange).basis is Basis.MAX_TOKENS


def test_bytes_become_tokens_as_in_jobs_that_were_counted(workshop: Workshop) -> None:
    job_id = workshop.make_job(tales(20, words=50, max_tokens=1))
    exact = counted(workshop, job_id)
    workshop.make_job(tales(20, words=50, max_tokens=1))
    again = estimated(workshop, workshop.make_job(tales(20, words=50, max_tokens=1))).given
    assert not again.is_exact
    assert again.input_tokens == pytest.approx(exact.input_tokens, rel=0.01)


def test_the_newest_estimate_follows_the_run(workshop: Workshop) -> None:
    job_id = workshop.make_job(tales(400, max_tokens=64))
    given = counted(workshop, job_id)
    worker = workshop.make_worker()
    workshop.tick()
    before = estimated(workshop, job_id).newest
    assert before is not None
    assert before.output == given.output
    workshop.run(worker, workshop.claim(worker, shards=50))
    workshop.tick()
    newest = estimated(workshop, job_id).newest
    assert newest is not None
    assert newest.input_tokens == given.input_tokens
    assert newest.output.likely < given.output.likely  # the lines so far were shorter
    assert newest.output_most < given.output_most
    assert newest.device_us is not None
    assert newest.wait_us is not None
    assert estimated(workshop, job_id).given == given
    workshop.drain(worker)
    record = estimated(workshop, job_id)
    assert record.newest is None
    assert record.actual is not None
    assert newest.output.low <= record.actual.output_tokens <= newest.output.high


def test_the_end_is_known_from_speed_workers_and_queue(workshop: Workshop) -> None:
    workshop.make_job(tales(40, max_tokens=8))
    worker = workshop.make_worker()
    workshop.drain(worker)
    first = counted(workshop, workshop.make_job(tales(400, max_tokens=8)))
    assert first.device_us is not None
    assert first.wait_us == first.device_us  # one worker, nothing ahead
    second = counted(workshop, workshop.make_job(tales(400, max_tokens=8)))
    assert second.wait_us is not None
    assert second.device_us is not None
    assert second.wait_us.likely >= second.device_us.likely + first.device_us.likely // 2
    urgent = counted(workshop, workshop.make_job(tales(400, max_tokens=8), priority=9))
    assert urgent.wait_us == urgent.device_us
    workshop.make_worker(pid=2)
    shared = counted(workshop, workshop.make_job(tales(400, max_tokens=8), priority=9))
    assert shared.wait_us is not None
    assert urgent.wait_us is not None
    assert shared.wait_us.likely == urgent.wait_us.likely  # twice the work, twice the workers


def test_without_live_workers_nobody_knows_the_end(workshop: Workshop) -> None:
    workshop.make_job(tales(40, max_tokens=8))
    workshop.drain(workshop.make_worker(pid=77))
    workshop.report_dead(77)
    given = counted(workshop, workshop.make_job(tales(8, max_tokens=8)))
    assert given.device_us is not None
    assert given.wait_us is None


def test_a_job_that_fails_when_it_is_read_has_no_estimate(workshop: Workshop) -> None:
    assert workshop.job(workshop.make_job([b"{"])).estimate is None
