"""Money that may be spent: limits kept to by the line, whoever claims, crashes or comes late."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop, make_item

from runner.db.models import BudgetAlert, Job, OutboxEvent, Shard, Spending, Usage
from runner.domain.budgets import most_billed_nano
from runner.domain.errors import Forbidden, InvalidRequest, NotFound, StateConflict
from runner.domain.ids import JobId
from runner.domain.lines import parse_line
from runner.domain.states import JobState, PauseReason
from runner.services import allowances, budget_checks, budgets, leases, pausing
from runner.services.keys import Caller
from runner.services.models import PriceList, price_at

CHAT = "/v1/chat/completions"
EASY = {"on_budget": "pause"}  # for limits below what a whole job costs


def lines(count: int, **body: object) -> list[bytes]:
    return [make_item(f"n{n}", f"Tale {n:03}.", max_tokens=8, **body) for n in range(count)]


def bound(workshop: Workshop, line: bytes) -> int:
    with workshop.sessions() as session:
        price = price_at(session, workshop.model.id, session.scalar(select(func.now())))
    return most_billed_nano(parse_line(line, CHAT, 1 << 20).outline, price, 1024)


def reserved(workshop: Workshop, job_id: JobId) -> int:
    return sum(shard.reserved_nano for shard in workshop.shards(job_id))


def billed(workshop: Workshop, *job_ids: JobId) -> int:
    return sum(row.billed_nano for job_id in job_ids for row in workshop.usage(job_id).values())


def runs(workshop: Workshop, job_id: JobId) -> bool:
    job = workshop.job(job_id)
    return job.state is JobState.IN_PROGRESS and job.pause_reason is None


def set_budget(workshop: Workshop, limit: int, key: bool = False) -> budgets.BudgetRecord:
    caller = workshop.caller
    with workshop.sessions.begin() as session:
        key_id = caller.api_key_id if key else None
        return budgets.set_budget(session, caller.project_id, key_id, limit)


def standing(workshop: Workshop) -> Sequence[budgets.BudgetRecord]:
    with workshop.sessions() as session:
        return budgets.list_budgets(session, workshop.caller.project_id)


def resume(workshop: Workshop, job_id: JobId, max_cost: int | None = None) -> object:
    with workshop.sessions.begin() as session:
        return pausing.resume_job(session, workshop.caller.project_id, job_id, max_cost)


def run_dry(workshop: Workshop, job_id: JobId, limit: int) -> None:
    """Run until nothing more is leased; the limit holds at every moment of it."""
    worker_id = workshop.make_worker()
    while held := workshop.claim(worker_id, shards=2):
        assert billed(workshop, job_id) + reserved(workshop, job_id) <= limit
        workshop.run(worker_id, held)
    assert billed(workshop, job_id) <= limit
    assert reserved(workshop, job_id) == 0


def test_a_job_without_limits_reserves_nothing(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(4))
    (lease,) = workshop.claim(workshop.make_worker())
    assert lease.reserved == {}
    assert reserved(workshop, job_id) == 0


def test_a_leased_line_holds_its_upper_bound_until_it_is_settled(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(4), max_cost_nano=10**9)
    worker_id = workshop.make_worker()
    (lease,) = workshop.claim(worker_id)
    each = bound(workshop, lines(1)[0])
    assert dict(lease.reserved) == dict.fromkeys(range(4), each)
    assert reserved(workshop, job_id) == 4 * each
    pack = workshop.answer(lease)
    workshop.commit(worker_id, pack[:1])
    assert reserved(workshop, job_id) == 3 * each
    workshop.commit(worker_id, pack[:1])  # its answer was lost, so it comes again
    assert reserved(workshop, job_id) == 3 * each
    workshop.commit(worker_id, pack[1:])
    assert reserved(workshop, job_id) == 0
    assert 0 < billed(workshop, job_id) < 4 * each


def test_a_reservation_ends_with_its_lease(workshop: Workshop) -> None:
    job_id = workshop.make_job(lines(4), max_cost_nano=10**9)
    worker_id = workshop.make_worker(pid=3)
    (lease,) = workshop.claim(worker_id)
    workshop.give_back(worker_id, lease)
    assert reserved(workshop, job_id) == 0
    workshop.claim(worker_id)
    workshop.lapse()
    workshop.tick()
    assert reserved(workshop, job_id) == 0
    (lease,) = workshop.claim(worker_id)
    workshop.report_dead(pid=3)
    assert reserved(workshop, job_id) == 0
    again = workshop.make_worker(pid=4)
    (lease,) = workshop.claim(again)
    workshop.cancel(job_id)
    workshop.give_back(again, lease)
    assert reserved(workshop, job_id) == 0


def test_a_job_stops_before_its_limit_with_what_is_done_and_goes_on_after_a_raise(
    workshop: Workshop,
) -> None:
    items = lines(32)
    limit = 5 * bound(workshop, items[0])
    job_id = workshop.make_job(items, max_cost_nano=limit, **EASY)
    run_dry(workshop, job_id, limit)
    job = workshop.job(job_id)
    assert (job.state, job.phase) == (JobState.IN_PROGRESS, "paused")
    assert job.pause_reason is PauseReason.BUDGET
    assert job.phase_reason is not None
    assert "max_cost of the job is" in job.phase_reason
    assert 5 < job.totals.succeeded < 32
    # Not one more line would have fitted.
    assert limit - job.totals.billed_nano < bound(workshop, items[0])
    assert len(workshop.parsed(job_id, "output")) == job.totals.succeeded
    workshop.tick()
    assert workshop.job(job_id).phase == "paused"
    with pytest.raises(StateConflict, match="raise the limit") as refusal:
        resume(workshop, job_id)
    assert (refusal.value.code, refusal.value.param) == ("budget_exceeded", "max_cost")
    resume(workshop, job_id, 10**9)
    run_dry(workshop, job_id, 10**9)
    workshop.close_all()
    ended = workshop.job(job_id)
    assert (ended.state, ended.totals.succeeded) == (JobState.COMPLETED, 32)
    assert ended.totals.billed_nano == billed(workshop, job_id)


def test_a_shard_that_does_not_fit_whole_is_split(workshop: Workshop) -> None:
    items = lines(4)
    each = bound(workshop, items[0])
    job_id = workshop.make_job(items, max_cost_nano=3 * each, **EASY)
    (lease,) = workshop.claim(workshop.make_worker())
    assert lease.idx == (0, 1, 2)
    assert [(shard.state, shard.idx) for shard in workshop.shards(job_id)] == [
        ("split", [0, 1, 2, 3]),
        ("leased", [0, 1, 2]),
        ("open", [3]),
    ]


def test_a_dear_line_is_passed_over_for_cheap_ones(workshop: Workshop) -> None:
    items = lines(3)
    dear = make_item("dear", "A tale.", max_tokens=1000)
    limit = 3 * bound(workshop, items[0])
    job_id = workshop.make_job([dear, *items], max_cost_nano=limit, **EASY)
    run_dry(workshop, job_id, limit)
    job = workshop.job(job_id)
    assert (job.totals.succeeded, job.phase) == (3, "paused")
    assert sorted(workshop.results(job_id)) == [1, 2, 3]


def test_nothing_pauses_while_leased_lines_may_still_free_money(workshop: Workshop) -> None:
    items = lines(8)
    limit = 4 * bound(workshop, items[0])
    job_id = workshop.make_job(items, max_cost_nano=limit, **EASY)
    one, other = workshop.make_worker(1), workshop.make_worker(2)
    (lease,) = workshop.claim(one)
    assert workshop.claim(other) == []
    assert runs(workshop, job_id)
    workshop.run(one, [lease])
    (more,) = workshop.claim(other)
    assert 0 < len(more.idx) <= 4


def test_a_suspect_shard_keeps_its_marks_when_money_splits_it(workshop: Workshop) -> None:
    items = lines(4)
    job_id = workshop.make_job(items, max_cost_nano=2 * bound(workshop, items[0]), **EASY)
    workshop.execute(update(Shard).values(suspect=True, attempt=2, not_before=func.now()))
    (lease,) = workshop.claim(workshop.make_worker())
    assert (lease.idx, lease.suspect, lease.attempt) == ((0, 1), True, 3)
    rest = workshop.shards(job_id)[-1]
    assert (rest.idx, rest.suspect, rest.attempt) == ([2, 3], True, 2)


@pytest.mark.parametrize("of_key", [False, True])
def test_a_monthly_budget_bears_all_jobs_of_its_payer(workshop: Workshop, of_key: bool) -> None:
    items = lines(12)
    limit = 3 * bound(workshop, items[0])
    set_budget(workshop, limit, key=of_key)
    first, second = (workshop.make_job(items, **EASY) for _ in range(2))
    other = workshop.make_caller("another")
    free = workshop.make_job(items, caller=other)
    worker_id = workshop.make_worker()
    while held := workshop.claim(worker_id, shards=3):
        (record,) = standing(workshop)
        assert record.limit.spent_nano == billed(workshop, first, second)
        assert record.limit.reserved_nano == reserved(workshop, first) + reserved(workshop, second)
        assert record.limit.left_nano >= 0
        workshop.run(worker_id, held)
    assert workshop.job(second).phase == "paused"
    assert "next month" in (workshop.job(second).phase_reason or "")
    workshop.close_all()
    assert workshop.job(free).state is JobState.COMPLETED
    assert billed(workshop, first, second) <= limit


def test_a_raised_budget_lets_its_jobs_go_on_by_itself(workshop: Workshop) -> None:
    items = lines(12)
    set_budget(workshop, 2 * bound(workshop, items[0]))
    job_id = workshop.make_job(items, **EASY)
    workshop.drain()
    assert workshop.job(job_id).phase == "paused"
    set_budget(workshop, 10**9)
    assert workshop.job(job_id).phase == "waiting"
    workshop.drain()
    assert workshop.job(job_id).state is JobState.COMPLETED


def test_a_new_month_brings_a_new_budget(workshop: Workshop) -> None:
    items = lines(12)
    set_budget(workshop, 2 * bound(workshop, items[0]))
    job_id = workshop.make_job(items, **EASY)
    workshop.drain()
    assert workshop.job(job_id).phase == "paused"
    workshop.tick()
    assert workshop.job(job_id).phase == "paused"
    last_month = Spending.month - timedelta(days=1)
    workshop.execute(update(Spending).values(month=last_month))
    workshop.tick()
    assert workshop.job(job_id).phase == "waiting"


def test_a_users_pause_is_not_lifted_by_money(workshop: Workshop) -> None:
    items = lines(12)
    set_budget(workshop, 2 * bound(workshop, items[0]))
    job_id = workshop.make_job(items, **EASY)
    workshop.drain()
    with workshop.sessions.begin() as session:
        pausing.pause_job(session, workshop.caller.project_id, job_id)
    set_budget(workshop, 10**9)
    assert workshop.job(job_id).pause_reason is PauseReason.USER


def test_without_a_budget_again_everything_runs(workshop: Workshop) -> None:
    record = set_budget(workshop, 0)
    job_id = workshop.make_job(lines(4), **EASY)
    workshop.drain()
    assert workshop.job(job_id).phase == "paused"
    with workshop.sessions.begin() as session:
        budgets.remove_budget(session, workshop.caller.project_id, record.limit.payer_id)
    workshop.drain()
    assert workshop.job(job_id).state is JobState.COMPLETED
    with workshop.sessions.begin() as session, pytest.raises(NotFound):
        budgets.remove_budget(session, workshop.caller.project_id, record.limit.payer_id)


def test_of_two_claims_at_once_the_second_sees_what_the_first_took(workshop: Workshop) -> None:
    items = lines(8)
    limit = 4 * bound(workshop, items[0])
    set_budget(workshop, limit)
    first, second = (workshop.make_job(items, **EASY) for _ in range(2))
    workers = [workshop.make_worker(n) for n in (1, 2)]
    claims = [leases.Claim(worker, workshop.model.id, 2, 60, False) for worker in workers]
    with workshop.sessions.begin() as one:
        assert len(leases.claim_shards(one, claims[0])) == 1
        with workshop.sessions.begin() as two:  # it waits its turn for a second, in vain
            assert leases.claim_shards(two, claims[1]) == []
    assert reserved(workshop, first) + reserved(workshop, second) <= limit


def test_three_workers_at_once_never_pass_a_limit(workshop: Workshop) -> None:
    items = lines(40)
    limit = 20 * bound(workshop, items[0])
    set_budget(workshop, limit)
    made = [workshop.make_job(items, **EASY) for _ in range(3)]
    query = select(func.sum(Shard.billed_nano + Shard.reserved_nano))
    highest = []

    def work(pid: int) -> None:
        worker_id = workshop.make_worker(pid)
        while any(runs(workshop, job_id) for job_id in made):
            for lease in workshop.claim(worker_id, shards=2):
                highest.append(workshop.scalar(query))
                workshop.commit(worker_id, workshop.answer(lease))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(1, 4)))
    assert max(highest) <= limit  # type: ignore[type-var]
    assert billed(workshop, *made) <= limit
    assert {workshop.job(job_id).phase for job_id in made} <= {"paused", "finalizing"}
    assert sum(reserved(workshop, job_id) for job_id in made) == 0


def test_a_claim_under_limits_does_not_hold_up_work_without(workshop: Workshop) -> None:
    free = workshop.make_caller("free")
    workshop.make_job(lines(4), max_cost_nano=10**9)
    job_id = workshop.make_job(lines(4), caller=free)
    with workshop.sessions.begin() as one:
        assert allowances.take_turns(one, workshop.model.id).ours == {workshop.caller.project_id}
        held = workshop.claim(workshop.make_worker(), shards=5)
        assert [lease.key.job_id for lease in held] == [job_id]


def test_a_claim_never_waits_for_a_job_that_somebody_changes(workshop: Workshop) -> None:
    items = lines(4)
    job_id = workshop.make_job(items, max_cost_nano=bound(workshop, items[0]), **EASY)
    with workshop.sessions.begin() as session:
        session.execute(select(Job).where(Job.id == job_id).with_for_update())
        assert workshop.claim(workshop.make_worker()) == []
    assert workshop.job(job_id).phase == "waiting"
    assert len(workshop.claim(workshop.make_worker())) == 1


def test_spending_says_the_same_as_the_ledger(workshop: Workshop) -> None:
    other = Caller(workshop.caller.project_id)  # the command line has no key
    for caller in (workshop.caller, other, workshop.make_caller("another")):
        workshop.make_job(lines(5), caller=caller)
    workshop.drain()
    noted = {
        row.payer_id: row.nano
        for row in workshop.rows(
            select(Spending.payer_id, func.sum(Spending.billed_nano).label("nano")).group_by(
                Spending.payer_id
            )
        )
    }
    for column in (Usage.project_id, Usage.api_key_id):
        query = select(column, func.sum(Usage.billed_nano)).where(column.is_not(None))
        for payer, nano in workshop.rows(query.group_by(column)):
            assert noted.pop(payer) == nano
    assert noted == {}
    month = func.date(func.date_trunc("month", func.timezone("UTC", Usage.created_at)))
    used_in = {row.month for row in workshop.rows(select(month.label("month")))}
    assert {row.month for row in workshop.rows(select(Spending.month))} == used_in


def test_each_mark_of_a_limit_is_told_once(workshop: Workshop) -> None:
    items = lines(40)
    job_id = workshop.make_job(items, max_cost_nano=5 * bound(workshop, items[0]), **EASY)
    set_budget(workshop, 10**9)
    worker_id = workshop.make_worker()
    while held := workshop.claim(worker_id):
        workshop.run(worker_id, held)
        workshop.tick()
    workshop.tick()
    told = workshop.rows(
        select(OutboxEvent.payload)
        .where(OutboxEvent.kind == "budget.alert")
        .order_by(OutboxEvent.id)
    )
    assert [row.payload["percent"] for row in told] == [50, 80, 100]
    assert {row.payload["job_id"] for row in told} == {str(job_id)}
    stopped = workshop.rows(select(OutboxEvent).where(OutboxEvent.kind == "job.paused"))
    assert len(stopped) == 1
    set_budget(workshop, 1)
    workshop.tick()
    marks = workshop.rows(select(BudgetAlert.percent).where(BudgetAlert.limit_nano == 1))
    assert sorted(row.percent for row in marks) == [50, 80, 100]


def test_a_job_that_cannot_fit_is_refused_with_the_figures(workshop: Workshop) -> None:
    with pytest.raises(InvalidRequest, match="will cost about 0.*max_cost of the job") as refusal:
        workshop.make_job(lines(40), max_cost_nano=1)
    assert (refusal.value.code, refusal.value.param) == ("budget_exceeded", "max_cost")
    set_budget(workshop, 1)
    with pytest.raises(InvalidRequest, match="monthly budget of its project is 0.000000001"):
        workshop.make_job(lines(40))
    assert workshop.make_job(lines(40), **EASY)
    assert workshop.make_job(lines(4), caller=workshop.make_caller("another"))


def test_a_key_with_a_budget_changes_no_budget(workshop: Workshop) -> None:
    with workshop.sessions() as session:
        budget_checks.require_unbudgeted(session, workshop.caller)
    set_budget(workshop, 10**9, key=True)
    with workshop.sessions() as session, pytest.raises(Forbidden, match="use a key without one"):
        budget_checks.require_unbudgeted(session, workshop.caller)


def test_a_budget_is_for_a_key_of_the_project(workshop: Workshop) -> None:
    stranger = workshop.make_caller("stranger")
    with workshop.sessions.begin() as session, pytest.raises(NotFound):
        budgets.set_budget(session, workshop.caller.project_id, stranger.api_key_id, 1)


def test_a_line_without_a_bound_of_its_own_is_bounded_by_the_model(workshop: Workshop) -> None:
    prices = PriceList()
    line = make_item("a", "Tale.")
    most = bound(workshop, line)
    assert most >= 1024 * prices.output_nano_per_million // 1_000_000
    assert bound(workshop, make_item("a", "Tale.", n=3)) > 2 * most
    assert bound(workshop, make_item("a", "Tale.", max_tokens=10**9)) <= most + 1000
