"""Planned times become runs once, and runs become jobs by the rules of their schedule."""

from datetime import datetime, timedelta
from threading import Barrier, Thread

import pytest
from sqlalchemy import func, select, update
from timetable import MINUTELY, Timetable
from workshop import Workshop, make_item, make_items

from runner.db.models import File, Job, Schedule, ScheduleRun
from runner.domain.errors import NotFound
from runner.domain.ids import RunId
from runner.domain.rings import Bell, Ring
from runner.services import schedules
from runner.services.files import get_file, tag_file
from runner.services.models import PriceList
from runner.services.schedule_runs import list_runs

MINUTE = timedelta(minutes=1)


def outcomes(timetable: Timetable, schedule: schedules.ScheduleRecord) -> list[str]:
    return [run.code or run.state for run in timetable.runs(schedule)]


def test_a_planned_time_becomes_a_job_that_is_finished_and_names_its_schedule(
    workshop: Workshop, timetable: Timetable
) -> None:
    file_id = workshop.make_file(make_items(3)[0] + b"\nnonsense\n" + make_items(3)[2])
    schedule = timetable.make(
        input_file_id=file_id,
        metadata={"a": "b"},
        priority=7,
        tags=("nights",),
        max_cost_nano=10**9,
        dedupe="project",
        on_budget="pause",
        run_hours="00:00-23:59 UTC",
    )
    timetable.come(schedule)
    assert timetable.plan() == 1
    assert timetable.plan() == 0
    assert timetable.start() == 1
    assert timetable.start() == 0
    timetable.finish()
    run = timetable.run(schedule)
    assert (run.outcome, run.trigger) == ("completed", "cron")
    assert run.job is not None
    assert (run.job.schedule_id, run.job.priority) == (schedule.id, 7)
    assert (run.job.totals.succeeded, run.job.totals.failed) == (2, 1)  # bad lines are skipped
    assert (run.job.metadata, run.job.tags) == ({"a": "b"}, ("nights",))
    assert (run.job.max_cost_nano, run.job.on_budget) == (10**9, "pause")
    assert run.job.dedupe == "project"
    assert run.job.run_hours == "00:00-23:59 UTC"
    shown = timetable.look(schedule)
    assert shown.last_run == run
    assert len(shown.next_runs) == 5


def test_a_tick_plans_and_rings(workshop: Workshop, timetable: Timetable) -> None:
    timetable.come(timetable.make())
    workshop.tick()
    assert Ring(Bell.RUNS) in workshop.rings
    workshop.rings.clear()
    workshop.tick()  # the ring was lost
    assert Ring(Bell.RUNS) in workshop.rings
    timetable.start()
    workshop.rings.clear()
    workshop.tick()
    assert Ring(Bell.RUNS) not in workshop.rings


def test_two_beats_and_two_starters_make_one_run_and_one_job(
    workshop: Workshop, timetable: Timetable
) -> None:
    schedule = timetable.make(overlap="allow")
    now = timetable.absent(schedule, 3 * MINUTE)
    barrier = Barrier(4)

    def act() -> None:
        barrier.wait()
        timetable.plan()
        timetable.start()

    threads = [Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timetable.start()
    runs = timetable.runs(schedule)
    assert [run.planned_at for run in runs] == [now - n * MINUTE for n in (3, 2, 1, 0)]
    assert [run.state for run in runs] == ["started"] * 4
    assert workshop.scalar(select(func.count()).select_from(Job)) == 4


def test_a_clock_set_back_doubles_nothing_and_silences_nothing(timetable: Timetable) -> None:
    """The clock was an hour ahead for a while: what was planned then lies in the future now."""
    schedule = timetable.make(overlap="allow")
    timetable.come(schedule)
    assert timetable.plan() == 1
    planned = timetable.run(schedule).planned_at
    timetable.workshop.execute(update(ScheduleRun).values(planned_at=planned + timedelta(hours=1)))
    timetable.workshop.execute(update(Schedule).values(next_at=planned + timedelta(hours=1)))
    timetable.plan()
    next_at = timetable.workshop.scalar(select(Schedule.next_at))
    assert isinstance(next_at, datetime)
    assert next_at <= planned + 31 * MINUTE
    timetable.workshop.execute(update(ScheduleRun).values(planned_at=planned))
    timetable.come(schedule)  # the same time comes again
    assert timetable.plan() == 0
    assert [run.planned_at for run in timetable.runs(schedule)] == [planned]


def test_after_a_long_absence_the_catch_up_rule_decides(timetable: Timetable) -> None:
    now = timetable.workshop.scalar(select(func.date_trunc("minute", func.now())))
    assert isinstance(now, datetime)
    hourly = f"{(now.minute + 30) % 60} * * * *"
    for rule, expected in (
        ("skip", ["missed"] * 10),
        ("latest", ["missed"] * 9 + ["waiting"]),
        ("all", ["missed"] * 3 + ["waiting"] * 7),
    ):
        schedule = timetable.make(name=rule, cron=hourly, catch_up=rule)
        first = now - timedelta(hours=10)
        timetable.workshop.execute(
            update(Schedule).where(Schedule.id == schedule.id).values(next_at=first)
        )
        timetable.plan()
        runs = [run for run in timetable.runs(schedule) if run.trigger == "catch_up"]
        assert [run.code or run.state for run in runs] == expected
        assert all(run.reason for run in runs if run.state == "skipped")


def test_the_history_of_a_long_absence_is_bounded(timetable: Timetable) -> None:
    schedule = timetable.make(catch_up="skip")
    timetable.absent(schedule, timedelta(days=60))
    assert timetable.plan() == 50


def test_what_is_made_up_runs_one_after_another_and_none_is_left_out(
    timetable: Timetable,
) -> None:
    schedule = timetable.make(catch_up="all", overlap="skip", cron="0 * * * *")
    timetable.absent(schedule, timedelta(hours=3, minutes=10))
    timetable.plan()
    made_up = [run for run in timetable.runs(schedule) if run.trigger == "catch_up"]
    assert len(made_up) >= 3
    for number in range(1, len(made_up) + 1):
        timetable.start()
        states = [run.state for run in timetable.runs(schedule) if run.trigger == "catch_up"]
        assert states.count("started") == number
        timetable.finish()


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("skip", ["started", "overlap", "overlap"]),
        ("queue", ["started", "waiting", "waiting"]),
        ("allow", ["started", "started", "started"]),
    ],
)
def test_while_a_run_has_not_ended_the_overlap_rule_decides(
    rule: str, expected: list[str], timetable: Timetable
) -> None:
    schedule = timetable.make(overlap=rule)
    timetable.absent(schedule, 2 * MINUTE)
    timetable.plan()
    timetable.start()
    assert outcomes(timetable, schedule)[:3] == expected
    timetable.finish()
    timetable.start()
    after = {"queue": ["started", "started", "waiting"]}.get(rule, expected)
    assert outcomes(timetable, schedule)[:3] == after


def test_a_queue_has_an_end(timetable: Timetable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runner.services.schedule_runs.WAITING_AT_MOST", 2)
    schedule = timetable.make(overlap="queue")
    timetable.absent(schedule, 3 * MINUTE)
    timetable.plan()
    assert outcomes(timetable, schedule)[:4] == ["waiting", "waiting", "queue_full", "queue_full"]


def test_a_run_by_hand_starts_whatever_runs_and_also_while_paused(timetable: Timetable) -> None:
    schedule = timetable.make(overlap="skip")
    timetable.come(schedule)
    timetable.plan()
    timetable.start()
    timetable.pause(schedule)
    asked = timetable.run_now(schedule)
    assert Ring(Bell.RUNS) in timetable.workshop.rings
    assert timetable.start() == 1
    run = timetable.run(schedule)
    assert (run.id, run.trigger, run.state) == (asked.id, "manual", "started")


def test_a_paused_schedule_plans_nothing_and_leaves_out_what_waits(timetable: Timetable) -> None:
    schedule = timetable.make(overlap="queue")
    timetable.absent(schedule, MINUTE)
    timetable.plan()
    timetable.start()
    paused = timetable.pause(schedule)
    assert (paused.state, paused.next_runs) == ("paused", ())
    assert timetable.pause(schedule).state == "paused"
    assert timetable.plan() == 0
    timetable.start()
    assert outcomes(timetable, schedule)[:2] == ["started", "paused"]
    resumed = timetable.resume(schedule)
    assert (resumed.state, len(resumed.next_runs)) == ("active", 5)
    assert timetable.plan() == 0  # what came meanwhile is not made up for


def test_a_deleted_schedule_leaves_its_jobs_and_frees_its_name(
    workshop: Workshop, timetable: Timetable
) -> None:
    schedule = timetable.make()
    timetable.come(schedule)
    timetable.plan()
    timetable.start()
    job = timetable.run(schedule).job
    assert job is not None
    timetable.run_now(schedule)
    timetable.delete(schedule)
    assert timetable.plan() == timetable.start() == 0
    with pytest.raises(NotFound):
        timetable.look(schedule)
    assert workshop.job(job.id).schedule_id == schedule.id
    left_out = select(ScheduleRun.code).where(ScheduleRun.state == "skipped")
    assert [code for (code,) in workshop.rows(left_out)] == ["deleted"]
    assert timetable.make(name=schedule.terms.name).id != schedule.id


def test_a_run_without_its_input_says_so(workshop: Workshop, timetable: Timetable) -> None:
    by_tag = timetable.make(name="tag", input_tag="nightly")
    gone = timetable.make(name="gone")
    workshop.execute(update(File).values(deleted_at=func.now()))
    for schedule, words in ((by_tag, "No file has the tag 'nightly'"), (gone, "was deleted")):
        timetable.come(schedule)
        timetable.plan()
        timetable.start()
        run = timetable.run(schedule)
        assert (run.state, run.code, run.job) == ("failed", "input_missing", None)
        assert words in (run.reason or "")


def test_a_run_that_its_limit_does_not_bear_fails_with_the_figures(
    workshop: Workshop, timetable: Timetable
) -> None:
    workshop.make_model("dear", prices=PriceList())
    file_id = workshop.make_file([make_item("a", model="dear")])
    schedule = timetable.make(input_file_id=file_id, max_cost_nano=0)
    timetable.run_now(schedule)
    timetable.start()
    run = timetable.run(schedule)
    assert (run.state, run.code, run.job) == ("failed", "budget_exceeded", None)
    assert "max_cost of the job is 0" in (run.reason or "")


def test_the_newest_file_with_the_tag_is_read(workshop: Workshop, timetable: Timetable) -> None:
    old, new, other = (workshop.make_file(b"%d" % n) for n in range(3))
    foreign = workshop.make_file(b"x", workshop.make_caller("elsewhere"))
    with workshop.sessions.begin() as session:
        for file_id in (new, old):
            tag_file(session, workshop.caller.project_id, file_id, ["nightly", "b"])
        tag_file(session, workshop.caller.project_id, other, ["daily"])
        session.execute(update(File).where(File.id == foreign).values(tags=["nightly"]))
    schedule = timetable.make(input_tag="nightly")
    timetable.run_now(schedule)
    timetable.start()
    job = timetable.run(schedule).job
    assert job is not None
    assert job.input_file_id == new


def test_the_file_of_a_schedule_does_not_expire_before_it(
    workshop: Workshop, timetable: Timetable
) -> None:
    file_id = workshop.make_file(b"{}")
    first, second = (timetable.make(name=n, input_file_id=file_id) for n in ("a", "b"))

    def expires() -> object:
        with workshop.sessions() as session:
            return get_file(session, workshop.caller.project_id, file_id).expires_at

    assert expires() is None
    timetable.delete(first)
    assert expires() is None
    timetable.change(second, input_file_id=None, input_tag="x")
    assert expires() is not None


def test_other_times_are_planned_from_now_on(timetable: Timetable) -> None:
    schedule = timetable.make(cron="0 0 1 1 *", zone="Asia/Kathmandu")
    assert schedule.next_runs[0].hour == 18
    changed = timetable.change(schedule, cron=MINUTELY, name="often")
    assert (changed.terms.name, changed.words) == ("often", "Every minute")
    next_at = timetable.workshop.scalar(select(Schedule.next_at))
    assert next_at == changed.next_runs[0]


def test_a_zone_that_vanished_pauses_its_schedule_alone(timetable: Timetable) -> None:
    lost, kept = timetable.make(name="lost"), timetable.make(name="kept")
    timetable.come(lost)
    timetable.come(kept)
    lost_row = update(Schedule).where(Schedule.id == lost.id)
    timetable.workshop.execute(lost_row.values(zone="Mars/Olympus"))
    assert timetable.plan() == 1
    problem = timetable.workshop.scalar(select(Schedule.problem).where(Schedule.id == lost.id))
    assert "Mars/Olympus" in str(problem)
    timetable.workshop.execute(lost_row.values(zone="UTC"))
    assert timetable.look(lost).state == "paused"
    assert timetable.resume(lost).problem is None


def test_runs_are_listed_in_pages(timetable: Timetable) -> None:
    schedule = timetable.make(catch_up="skip")
    timetable.absent(schedule, timedelta(minutes=20))
    timetable.plan()
    with timetable.workshop.sessions() as session:
        first = list_runs(session, timetable.project_id, schedule.id, None, 10)
        second = list_runs(session, timetable.project_id, schedule.id, first.items[-1].id, 100)
        assert first.has_more
        assert not second.has_more
        times = [run.planned_at for run in (*first.items, *second.items)]
        assert times == sorted(times, reverse=True)
        assert len(times) >= 21
        nothing = RunId(schedule.id)
        assert list_runs(session, timetable.project_id, schedule.id, nothing, 5).items == []
