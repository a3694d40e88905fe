"""Equal lines answered once: each copy in its own name, at its own price, whatever happens."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete, func, select, update
from workshop import CHAT, MODEL, Workshop, make_item

from runner.db.models import AnswerKey, File, Job, LatencyDay, Result, Spending, Usage, UsageDay
from runner.domain.answers import success_line
from runner.domain.copies import copied_line
from runner.domain.errors import InvalidRequest
from runner.domain.ids import JobId, call_id, item_id, new_uuid
from runner.domain.latency import Measure
from runner.domain.reuse import answer_key
from runner.domain.rings import Bell, Ring
from runner.domain.states import JobState
from runner.inference import open_counter
from runner.services import pausing, retries
from runner.services.copies import run_copies
from runner.services.counting import run_count
from runner.services.job_estimates import bytes_per_token
from runner.services.models import PriceList, set_price
from runner.services.reports import job_report
from runner.services.retries import RetryLines
from runner.services.rollup import differences

PRICED = PriceList(reused_nano_per_million=7_000_000)  # seven nano-units a line
MakeWorkshop = Callable[..., Workshop]


def tales(*contents: str, start: int = 0, **body: object) -> list[bytes]:
    """Greedy lines, equal where their contents are."""
    fields = {"temperature": 0, "max_tokens": 8, **body}
    return [make_item(f"n{n}", text, **fields) for n, text in enumerate(contents, start)]


@pytest.fixture
def house(workshop: Workshop) -> Workshop:
    """A workshop in which copies have a price, and are settled whenever somebody rings for them."""
    with workshop.sessions.begin() as session:
        set_price(session, workshop.model.id, PRICED)
    workshop.listeners.append(lambda ring: settle(workshop, ring))
    return workshop


def settle(workshop: Workshop, ring: Ring) -> None:
    if ring.bell is Bell.COPY and ring.job_id is not None:
        run_copies(workshop.sessions, ring.job_id)


def states(workshop: Workshop, job_id: JobId) -> list[tuple[str, list[int]]]:
    return [(shard.state, sorted(shard.idx)) for shard in workshop.shards(job_id)]


def check_account(workshop: Workshop, job_id: JobId) -> None:
    """All tellings of a job's money and lines agree."""
    job, usage = workshop.job(job_id), workshop.usage(job_id).values()
    assert job.totals.succeeded == len(usage)
    assert job.totals.succeeded + job.totals.failed == job.total
    assert job.totals.reused == sum(row.reused for row in usage)
    assert job.totals.billed_nano == sum(row.billed_nano for row in usage)
    with workshop.sessions() as session:
        assert differences(session) == []
    (day,) = workshop.rows(select(UsageDay.reused_lines).where(UsageDay.job_id == job_id))
    assert day.reused_lines == job.totals.reused
    spent = select(func.sum(Spending.billed_nano)).where(
        Spending.payer_id == workshop.caller.project_id
    )
    assert workshop.scalar(spent) == workshop.scalar(select(func.sum(Usage.billed_nano)))


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        ({"temperature": 0, "n": 1}, {"n": 1, "temperature": 0.0}, False),  # 0 is written otherwise
        ({"temperature": 0, "n": 1}, {"n": 1, "temperature": 0}, True),
        ({"temperature": 0, "prompt": "a"}, {"temperature": 0, "prompt": "\u0061"}, True),
        ({"temperature": 0, "prompt": "a"}, {"temperature": 0, "prompt": "A"}, False),
        ({"seed": 1, "temperature": 1}, {"seed": 1, "temperature": 1}, True),
        ({"temperature": 1}, {"temperature": 1}, False),
        ({}, {}, False),
        ({"seed": 1, "f": {"a": 1, "b": 2}}, {"seed": 1, "f": {"b": 2, "a": 1}}, False),
    ],
)
def test_lines_are_equal_whose_answer_cannot_differ(
    one: dict[str, object], other: dict[str, object], are_equal: bool
) -> None:
    first, second = (answer_key(CHAT, json.dumps(each).encode()) for each in (one, other))
    assert (first is not None and first == second) is are_equal


def test_equal_lines_are_computed_once(house: Workshop) -> None:
    lines = [*tales("a", "b", "a", "a", "b"), make_item("odd", "a"), make_item("odd2", "a")]
    job_id = house.make_job(lines, dedupe="job")
    assert states(house, job_id) == [("open", [0, 1, 5, 6]), ("following", [2, 3, 4])]
    house.drain()
    job = house.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.reused) == ("completed", 7, 3)
    said = {line["custom_id"]: line for line in house.parsed(job_id, "output")}
    assert list(said) == ["n0", "n1", "n2", "n3", "n4", "odd", "odd2"]
    for copy, first in (("n2", 0), ("n3", 0), ("n4", 1)):
        line, source = said[copy], said[f"n{first}"]
        own = item_id(job_id, int(copy[1]))
        assert (line["id"], line["response"]["request_id"]) == (own, own)
        assert line["response"]["body"]["id"] == f"chatcmpl-{own}"
        assert line["reused_from"] == source["id"]
        assert "reused_from" not in source
        body = {**line["response"]["body"], "id": source["response"]["body"]["id"]}
        assert body == source["response"]["body"]
    assert not any("reused_from" in said[name] for name in ("n0", "n1", "odd", "odd2"))
    check_account(house, job_id)


def test_every_id_in_an_answer_becomes_the_copys_own() -> None:
    old, new = item_id(JobId(new_uuid()), 3), item_id(JobId(new_uuid()), 8)
    told = f"{old} is not an id here, nor is {call_id(old, 0, 0)}"
    message = {"content": told, "tool_calls": [{"id": call_id(old, 1, 0)}]}
    chat = {"id": f"chatcmpl-{old}", "choices": [{"index": 1, "message": message}]}
    items = [
        {"id": f"msg_{old}", "content": told},
        {"id": f"fc_{old}_0", "call_id": call_id(old, 0, 0), "arguments": told},
        {"id": f"fc_{old}_1", "call_id": call_id(old, 0, 1), "arguments": "{}"},
    ]
    vectors = {"data": [{"embedding": [0.1, 1e-05], "index": 0}]}  # has no id
    for body in (chat, {"id": f"resp_{old}", "output": items}, vectors):
        line = success_line(old, "its name", json.dumps(body).encode())
        copy = json.loads(copied_line(new, "another", old, line))
        assert (copy["custom_id"], copy["reused_from"]) == ("another", old)
        text = json.dumps(body).replace(told, "TOLD").replace(old, new)
        for choice, number in ((0, 0), (0, 1), (1, 0)):
            text = text.replace(call_id(old, choice, number), call_id(new, choice, number))
        assert copy["response"]["body"] == json.loads(text.replace("TOLD", told))


def test_a_copy_is_one_line_to_every_reader() -> None:
    old, new = item_id(JobId(new_uuid()), 3), item_id(JobId(new_uuid()), 8)
    message = {"content": "a\u2028b\x85", "tool_calls": [{"id": call_id(old, 0, 0)}]}
    body = {"id": f"chatcmpl-{old}", "choices": [{"index": 0, "message": message}]}
    line = success_line(old, "n", json.dumps(body, ensure_ascii=False).encode())
    copy = copied_line(new, "another", old, line).decode()
    assert len(copy.splitlines()) == 1
    told = json.loads(copy)["response"]["body"]["choices"][0]["message"]
    assert told["content"] == message["content"]


def test_a_copy_is_billed_its_own_price_and_nothing_else(house: Workshop) -> None:
    job_id = house.make_job(tales("a", "a", "a"), dedupe="job")
    house.drain()
    computed, *copies = house.usage(job_id).values()
    assert computed.billed_nano > 7
    assert not computed.reused
    for row in copies:
        assert (row.reused, row.billed_nano, row.run_cost_nano) == (True, 7, 0)
        assert (row.prompt_tokens, row.output_tokens, row.device_us, row.attempt) == (0, 0, 0, 0)
        assert row.saved_nano == computed.billed_nano - 7
    with house.sessions() as session:
        account = job_report(session, house.caller.project_id, job_id).account
    assert (account.lines, account.reused_lines) == (3, 2)
    assert account.saved_nano == 2 * (computed.billed_nano - 7)
    assert account.total.p50 == computed.total_us  # a line that took no time says nothing of time
    assert account.queue.p50 == computed.queue_us
    rolled = select(func.sum(LatencyDay.lines)).where(LatencyDay.measure == Measure.TOTAL)
    assert house.scalar(rolled.where(LatencyDay.job_id == job_id)) == 1
    check_account(house, job_id)


def test_nothing_is_reused_unless_it_is_asked_for(house: Workshop) -> None:
    house.make_job(tales("a"), dedupe="project")
    house.drain()
    job_id = house.make_job(tales("a", "a"))
    assert states(house, job_id) == [("open", [0, 1])]
    with pytest.raises(InvalidRequest, match="dedupe must be one of off, job, project"):
        house.make_job(tales("a"), dedupe="all")


def test_an_error_is_that_of_all_equal_lines(house: Workshop) -> None:
    bad = tales("a", "a", stream_options={})
    job_id = house.make_job([*bad, *tales("b", start=2)], dedupe="job")
    house.drain()
    job = house.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 1, 2)
    first, copy = house.parsed(job_id, "error")
    assert copy["custom_id"] == "n1"
    assert copy["response"]["body"] == first["response"]["body"]
    assert copy["reused_from"] == first["id"]
    assert sorted(house.usage(job_id)) == [2]
    check_account(house, job_id)


def test_a_refused_line_answers_for_nobody(house: Workshop) -> None:
    same = make_item("n0", "a", temperature=0, max_tokens=8)
    lines = [*tales("b"), same, *tales("a", start=2)]
    job_id = house.make_job(lines, dedupe="job", on_invalid="skip")
    assert states(house, job_id) == [("open", [0, 2])]
    house.drain()
    assert house.job(job_id).totals.failed == 1


def test_copies_of_a_cancelled_job_are_told_so(house: Workshop) -> None:
    job_id = house.make_job(tales(*"abcde", *"abcde"), dedupe="job")
    worker_id = house.make_worker()
    house.run(worker_id, house.claim(worker_id))  # a to d
    assert run_copies(house.sessions, job_id) == 4
    house.cancel(job_id)
    house.close_all()
    job = house.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.reused) == ("cancelled", 8, 4)
    assert [code for _, code in house.errors(job_id)] == ["batch_cancelled"] * 2
    check_account(house, job_id)


def test_a_later_job_of_the_project_takes_what_stands(house: Workshop) -> None:
    first = house.make_job(tales("a", "b"), dedupe="project")
    house.drain()
    second = house.make_job(tales("c", "b", "b", "c"), dedupe="project")
    assert sorted(house.results(second)) == [1, 2]  # at once, with nothing leased
    assert states(house, second)[0] == ("open", [0])
    house.drain()
    said = house.parsed(second, "output")
    assert [line.get("reused_from") for line in said] == [
        None,
        item_id(first, 1),
        item_id(first, 1),
        item_id(second, 0),
    ]
    check_account(house, second)
    third = house.make_job(tales("b", "c"), dedupe="project")
    assert house.job(third).state is JobState.FINALIZING  # there is nothing to compute
    house.close_all()
    # The pool has each answer once, however many jobs take it.
    pool = house.rows(select(AnswerKey.job_id, AnswerKey.idx).order_by(AnswerKey.job_id))
    assert sorted(pool) == [(first, 0), (first, 1), (second, 0)]
    rows = house.usage(third)
    assert rows[0].saved_nano == house.usage(first)[1].billed_nano - 7
    check_account(house, third)


def test_another_project_or_other_weights_share_nothing(house: Workshop) -> None:
    house.make_job(tales("a"), dedupe="project")
    house.drain()
    stranger = house.make_job(tales("a"), dedupe="project", caller=house.make_caller("garden"))
    assert states(house, stranger) == [("open", [0])]
    house.make_model(MODEL, "stub:?other")
    assert states(house, house.make_job(tales("a"), dedupe="project")) == [("open", [0])]


def test_what_was_deleted_is_not_reused(house: Workshop) -> None:
    first = house.make_job(tales("a", "b"), dedupe="project")
    house.drain()
    house.listeners.clear()
    second = house.make_job(tales("a", "c", "a", "b"), dedupe="project")
    gone = (Result.job_id == first, Result.idx == 0)
    house.execute(delete(Result).where(*gone))  # before anybody took it
    assert run_copies(house.sessions, second) > 0
    assert [state for state, _ in states(house, second)] == ["open", "open"]
    house.drain()
    assert (house.job(second).state, house.job(second).totals.reused) == ("completed", 1)
    told = house.job(second).estimate
    assert told is not None
    assert told.actual is not None
    assert (told.actual.lines, told.actual.reused_lines) == (3, 1)
    check_account(house, second)
    third = house.make_job(tales("c"), dedupe="project")
    output = house.job(second).output_file_id
    house.execute(update(File).where(File.id == output).values(deleted_at=func.now()))
    assert run_copies(house.sessions, third) == 1  # its bytes are still there
    assert states(house, third) == [("open", [0])]
    assert states(house, house.make_job(tales("a"), dedupe="project")) == [("open", [0])]


def test_a_retry_copies_within_itself_and_from_its_parent(house: Workshop) -> None:
    parent = house.make_job(tales(*"abcde", *"ae"), dedupe="project")
    house.listeners.clear()
    worker_id = house.make_worker()
    house.run(worker_id, house.claim(worker_id))  # a to d
    house.cancel(parent)
    house.close_all()
    with house.sessions.begin() as session:
        child = retries.retry_job(session, house.caller, parent, RetryLines.ALL, 4)
    assert states(house, child.id) == [("open", [4]), ("following", [5, 6])]
    house.listeners.append(lambda ring: settle(house, ring))
    house.drain()
    said = house.parsed(child.id, "output")
    assert [line.get("reused_from") for line in said] == [
        None,
        item_id(parent, 0),
        item_id(child.id, 4),
    ]
    check_account(house, child.id)
    later = house.make_job(tales("e"), dedupe="project")
    assert [line["reused_from"] for line in house.parsed(later, "output")] == [item_id(child.id, 4)]


def test_a_limit_bears_copies_too(house: Workshop) -> None:
    job_id = house.make_job(tales("a", "a", "a", "a"), dedupe="job", max_cost_nano=10**9)
    worker_id = house.make_worker()
    house.run(worker_id, house.claim(worker_id))
    # The rings of the run have settled all; the same with a limit that bears one copy and a half.
    assert house.job(job_id).state is JobState.FINALIZING
    billed = house.usage(job_id)[0].billed_nano
    house.listeners.clear()
    tight = house.make_job(
        tales("a", "a", "a", "a"), dedupe="job", max_cost_nano=10**9, on_budget="pause"
    )
    house.run(worker_id, house.claim(worker_id))
    house.execute(update(Job).where(Job.id == tight).values(max_cost_nano=billed + 10))
    assert run_copies(house.sessions, tight) == 1
    job = house.job(tight)
    assert (job.phase, job.totals.reused, job.totals.billed_nano) == ("paused", 1, billed + 7)
    assert "the next line can cost 0.000000007" in (job.phase_reason or "")
    with house.sessions.begin() as session:
        pausing.resume_job(session, house.caller.project_id, tight, billed + 21)
    assert run_copies(house.sessions, tight) == 2
    house.close_all()
    check_account(house, tight)


def test_the_estimate_is_of_the_lines_that_are_computed(house: Workshop) -> None:
    job_id = house.make_job(tales(*"ab", *"ababab"), dedupe="job")
    guess = house.job(job_id).estimate
    assert guess is not None
    assert (guess.given.lines, guess.given.reused_lines) == (2, 6)
    run_count(house.sessions, house.settings, open_counter, job_id)
    house.tick()
    house.drain()
    told = house.job(job_id).estimate
    assert told is not None
    assert told.actual is not None
    assert (told.given.lines, told.given.reused_lines) == (2, 6)
    assert (told.actual.lines, told.actual.reused_lines) == (2, 6)
    assert told.given.input_tokens == told.actual.input_tokens
    assert told.given.billed.low <= told.actual.billed_nano <= told.given.billed_most
    with house.sessions() as session:  # how long its computed lines are was never looked at
        assert bytes_per_token(session, house.caller.project_id, house.model.id) is None


def test_a_lost_ring_for_copies_is_sent_again(workshop: Workshop) -> None:
    job_id = workshop.make_job(tales("a", "a"), dedupe="job")
    workshop.drain()
    assert Ring(Bell.COPY, job_id) in workshop.rings
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.COPY, job_id) in workshop.rings
    assert workshop.job(job_id).state is JobState.IN_PROGRESS
    run_copies(workshop.sessions, job_id)
    run_copies(workshop.sessions, job_id)  # a second messenger finds nothing to do
    assert workshop.job(job_id).state is JobState.FINALIZING


def test_messengers_at_once_answer_each_line_once(workshop: Workshop) -> None:
    job_id = workshop.make_job(tales(*"a" * 161), dedupe="job")
    workshop.drain()
    with ThreadPoolExecutor(3) as messengers:
        settled = messengers.map(lambda _: run_copies(workshop.sessions, job_id), range(3))
        assert sum(settled) == 160
    workshop.close_all()
    assert workshop.job(job_id).totals.succeeded == len(workshop.usage(job_id)) == 161
