"""A live engine worker on the stub, in threads of the test."""

import os
import re
import socket
import threading
import time
from collections.abc import Callable

import pytest
from live_worker import MakeWorkshop, StartWorker, finish, settled
from patience import PATIENCE, wait_until
from sqlalchemy import func, select, text, update
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from standstill import standstill
from workshop import Workshop, make_item, make_items

from runner.db.models import Job, Profile, Shard, Worker
from runner.domain.ids import WorkerId, encode
from runner.domain.leases import FinishedItem
from runner.inference.stub import StubBackend
from runner.services import pausing, profiles
from runner.services.leases import Claim
from runner.services.worker_time import worker_accounts
from runner.worker import engine_worker, feeder, keeper, resident_model, writer
from runner.worker.step_loop import StepLoop
from runner.worker.step_report import StepReport


def content_without_ids(workshop: Workshop, job_id: object) -> bytes:
    """The output file of a job, without what tells the job apart from another."""
    whole = workshop.content(workshop.job(job_id).output_file_id)  # type: ignore[arg-type]
    letters = encode("", job_id).encode()  # type: ignore[arg-type]
    return re.sub(rb'"created":\d+', b'"created":0', whole.replace(letters, b"JOB"))


def test_the_step_loop_is_told_when_nothing_is_left_to_lease(
    make_workshop: MakeWorkshop, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    tell = StepLoop.expect_more

    def listen(loop: StepLoop, more: bool) -> None:
        told.append(more)
        tell(loop, more)

    looks: list[StepReport] = []
    monkeypatch.setattr(StepLoop, "expect_more", listen)
    monkeypatch.setattr(StepReport, "look", lambda report: looks.append(report))
    workshop = make_workshop("stub:?rows=8", shard_lines=8)
    start_worker(workshop)
    wait_until(lambda: told[:1] == [False])
    job_id = workshop.make_job(50)
    finish(workshop, job_id)
    wait_until(lambda: told[-1] is False)
    assert True in told
    assert looks, "nobody would log the engine's figures"


def test_a_worker_drains_what_waits_and_what_comes(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=64", shard_lines=64)
    first = workshop.make_job(500)
    live = start_worker(workshop)
    finish(workshop, first)
    second = workshop.make_job([*make_items(99), make_item("bad", stream_options={})])
    finish(workshop, second)
    assert workshop.job(first).totals.succeeded == 500
    job = workshop.job(second)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 99, 1)
    assert list(workshop.errors(second)) == [("bad", "unsupported_value")]
    row = workshop.worker(live.id)
    assert (row.state, row.rows, row.pid) == ("ready", 64, os.getpid())
    assert (row.lane, row.lane_reason) == ("stub", "")
    live.stop()
    row = workshop.worker(live.id)
    assert (row.state, row.end_reason, row.stale_results) == ("ended", "drained", 0)
    assert row.busy_us > 0


def test_a_worker_with_few_rows_does_not_wait_for_the_end_of_a_shard(
    make_workshop: MakeWorkshop, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = make_workshop("stub:?rows=4", shard_lines=32)
    in_hand: list[int] = []
    claimed_again = threading.Event()
    claim, step = feeder.claim_shards, StubBackend.step
    ended = 0

    def note(*args: object) -> object:
        leases = claim(*args)  # type: ignore[arg-type]
        if leases:
            query = select(func.count()).where(Shard.state == "leased")
            in_hand.append(workshop.scalar(query))  # type: ignore[arg-type]
        if len(in_hand) == 2:
            claimed_again.set()
        return leases

    def step_until_few_are_left(backend: StubBackend) -> object:
        nonlocal ended
        if ended >= 28:
            claimed_again.wait(PATIENCE)
        outcomes = step(backend)
        ended += len(outcomes)
        return outcomes

    monkeypatch.setattr(feeder, "claim_shards", note)
    monkeypatch.setattr(StubBackend, "step", step_until_few_are_left)
    job_id = workshop.make_job(64)
    start_worker(workshop)
    finish(workshop, job_id, seconds=2 * PATIENCE)
    # Counted by another session, so without the shard that is just being taken.
    assert in_hand == [0, 1]


def test_a_disturbed_run_makes_the_same_file_as_a_quiet_one(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=16&step_ms=5", shard_lines=8, grace_seconds=0.1)
    lines = make_items(300)
    quiet = workshop.make_job(lines)
    live = start_worker(workshop)
    finish(workshop, quiet)
    disturbed = workshop.make_job(lines)
    for step in (50, 120, 190):
        wait_until(lambda step=step: settled(workshop, disturbed) >= step)  # type: ignore[misc]
        workshop.lapse()
        workshop.tick()
        live.stop()
        live = start_worker(workshop)
    finish(workshop, disturbed)
    assert workshop.job(disturbed).totals.succeeded == 300
    assert content_without_ids(workshop, disturbed) == content_without_ids(workshop, quiet)
    assert len(workshop.usage(disturbed)) == 300


def test_a_draining_worker_gives_back_without_penalty_within_its_grace(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=4&step_ms=200", grace_seconds=0.3)
    long = [make_item(f"long-{n}", min_tokens=100) for n in range(40)]  # 20 s each
    job_id = workshop.make_job([make_item("short", max_tokens=1), *long])
    live = start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    live.stop()
    assert settled(workshop, job_id) == 1
    shards = workshop.shards(job_id)
    assert {shard.state for shard in shards} == {"open"}
    assert {shard.attempt for shard in shards} == {0}
    assert max(shard.epoch for shard in shards) >= 1
    assert workshop.worker(live.id).state == "ended"
    assert workshop.worker(live.id).wasted_us > 0


def test_lines_that_end_within_the_grace_are_kept(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=8&step_ms=20", shard_lines=8, grace_seconds=PATIENCE)
    job_id = workshop.make_job(8)
    live = start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    live.stop()
    assert [(shard.epoch, shard.state) for shard in workshop.shards(job_id)] == [(1, "done")]


def test_a_worker_without_a_model_can_still_be_drained(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop()
    workshop.execute(text("UPDATE models SET retired_at = now()"))
    live = start_worker(workshop)
    time.sleep(0.1)
    live.stop()
    assert workshop.rows(select(Worker.id)) == []


def test_a_cancel_reaches_the_engine_at_once(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=4&step_ms=100")
    job_id = workshop.make_job(400)  # a minute's work
    start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    workshop.cancel(job_id)
    finish(workshop, job_id)
    job = workshop.job(job_id)
    assert job.state == "cancelled"
    assert job.totals.failed > 300
    assert len(workshop.usage(job_id)) == job.totals.succeeded
    after = workshop.make_job(4)
    finish(workshop, after)
    assert workshop.job(after).totals.succeeded == 4


def test_a_paused_job_leaves_the_engine_without_waste_and_goes_on_when_resumed(
    make_workshop: MakeWorkshop, start_worker: StartWorker, hurry: threading.Event
) -> None:
    workshop = make_workshop("stub:?rows=4&step_ms=100", shard_lines=8)
    job_id = workshop.make_job(100)  # 20 s of work
    live = start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    with workshop.sessions.begin() as session:
        pausing.pause_job(session, workshop.caller.project_id, job_id)
    wait_until(lambda: {shard.state for shard in workshop.shards(job_id)} <= {"open", "done"})
    hurry.set()
    done = settled(workshop, job_id)
    assert done < 100
    assert {shard.attempt for shard in workshop.shards(job_id) if shard.state == "open"} == {0}
    other = workshop.make_job(4)
    finish(workshop, other)
    assert settled(workshop, job_id) == done
    with workshop.sessions.begin() as session:
        pausing.resume_job(session, workshop.caller.project_id, job_id)
    finish(workshop, job_id)
    assert workshop.job(job_id).totals.succeeded == 100
    live.stop()
    row = workshop.worker(live.id)
    assert (row.wasted_us, row.stale_results) == (0, 0)


def test_urgent_work_overtakes(make_workshop: MakeWorkshop, start_worker: StartWorker) -> None:
    workshop = make_workshop("stub:?rows=8&step_ms=80")
    slow = workshop.make_job(400)  # half a minute's work
    start_worker(workshop)
    wait_until(lambda: settled(workshop, slow) > 0)
    urgent = workshop.make_job(4, priority=10)
    finish(workshop, urgent)
    assert settled(workshop, slow) < 300
    shards = workshop.shards(slow)
    assert max(shard.attempt for shard in shards) == 1
    workshop.cancel(slow)
    finish(workshop, slow)


def test_a_worker_that_outlived_its_leases_doubles_nothing(
    make_workshop: MakeWorkshop, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = make_workshop("stub:?rows=16&step_ms=5")
    job_id = workshop.make_job(200)
    other = workshop.make_worker(pid=99)
    commit, taken = writer.commit_results, []

    def commit_too_late(session: Session, worker_id: WorkerId, pack: object) -> object:
        if not taken:
            workshop.lapse(worker_id)
            workshop.tick()
            taken.extend(workshop.claim(other, shards=2))
            workshop.run(other, taken)
        return commit(session, worker_id, pack)  # type: ignore[arg-type]

    monkeypatch.setattr(writer, "commit_results", commit_too_late)
    live = start_worker(workshop)
    finish(workshop, job_id)
    assert workshop.worker(live.id).stale_results > 0
    assert workshop.job(job_id).totals.succeeded == 200
    assert len(workshop.usage(job_id)) == len(workshop.results(job_id)) == 200
    assert {row.worker_id for row in workshop.usage(job_id).values()} == {live.id, other}


@pytest.mark.usefixtures("quick_beats")
def test_a_worker_declared_dead_by_mistake_ends_and_harms_nothing(
    make_workshop: MakeWorkshop, start_worker: StartWorker, hurry: threading.Event
) -> None:
    workshop = make_workshop("stub:?rows=8&step_ms=100", grace_seconds=5.0)
    job_id = workshop.make_job(150)  # a quarter of a minute's work
    live = start_worker(workshop)
    wait_until(lambda: settled(workshop, job_id) > 0)
    assert workshop.report_dead(os.getpid(), socket.gethostname()) > 0
    assert live.ended.wait(PATIENCE)
    assert workshop.worker(live.id).state == "dead"
    hurry.set()
    start_worker(workshop)
    finish(workshop, job_id)
    assert len(workshop.usage(job_id)) == workshop.job(job_id).totals.succeeded == 150


@pytest.mark.usefixtures("quick_beats")
def test_leases_stay_alive_for_as_long_as_their_worker_beats(
    make_workshop: MakeWorkshop,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
    hurry: threading.Event,
) -> None:
    workshop = make_workshop("stub:?rows=4&step_ms=600000", grace_seconds=0.0)
    claim, lost = feeder.claim_shards, []

    def lose_the_first_answer(session: Session, wanted: Claim) -> object:
        leases = claim(session, wanted)
        if leases and not lost:
            lost.extend(leases)
            session.commit()
            raise OperationalError("UPDATE", None, Exception("the connection was lost"))
        return leases

    def lease_end(job_id: object) -> object:
        return workshop.scalar(select(Shard.lease_expires_at).where(Shard.job_id == job_id))

    monkeypatch.setattr(feeder, "claim_shards", lose_the_first_answer)
    orphan = workshop.make_job(4)
    live = start_worker(workshop)
    wait_until(lambda: lost)
    job_id = workshop.make_job(4)
    wait_until(lambda: lease_end(job_id))
    known, unknown = lease_end(job_id), lease_end(orphan)
    wait_until(lambda: lease_end(job_id) > known)  # type: ignore[operator]
    assert lease_end(orphan) == unknown
    hurry.set()
    workshop.execute(
        update(Shard)
        .where(Shard.job_id == orphan)
        .values(lease_expires_at=func.now() - text("interval '1 second'"))
    )
    finish(workshop, job_id, orphan)
    attempts = [[shard.attempt for shard in workshop.shards(each)] for each in (job_id, orphan)]
    assert attempts == [[1], [2]]
    assert workshop.worker(live.id).stale_results == 0


def test_leases_whose_lines_cannot_be_read_are_given_back(
    make_workshop: MakeWorkshop, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = make_workshop("stub:?rows=64")
    read, failures = feeder.read_items, []

    def fail_twice(*args: object) -> object:
        if len(failures) < 2:
            failures.append(args)
            raise OperationalError("SELECT", None, Exception("the server was restarted"))
        return read(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(feeder, "read_items", fail_twice)
    job_id = workshop.make_job(60)
    start_worker(workshop)
    finish(workshop, job_id)
    assert workshop.job(job_id).totals.succeeded == 60
    assert {shard.attempt for shard in workshop.shards(job_id)} == {1}


def test_a_worker_waits_for_a_database_that_is_away_when_it_starts_and_when_it_ends(
    make_workshop: MakeWorkshop, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workshop = make_workshop("stub:?rows=64")
    failures: dict[str, int] = {}

    def failing(module: object, name: str) -> Callable[..., object]:
        real = getattr(module, name)

        def fail_twice(*args: object) -> object:
            failures[name] = failures.get(name, 0) + 1
            if failures[name] <= 2:
                raise OperationalError("SELECT", None, Exception("the server is away"))
            return real(*args)

        return fail_twice

    for module, name in (
        (engine_worker, "take_seat"),
        (resident_model, "mark_ready"),
        (engine_worker, "end_worker"),
    ):
        monkeypatch.setattr(module, name, failing(module, name))
    monkeypatch.setattr(engine_worker, "_LAST_WORD_SECONDS", PATIENCE)
    job_id = workshop.make_job(20)
    live = start_worker(workshop)
    finish(workshop, job_id)
    live.stop()
    assert set(failures.values()) == {3}
    assert workshop.worker(live.id).state == "ended"


@pytest.mark.usefixtures("quick_beats")
@pytest.mark.parametrize("first", ["writer", "keeper"])
def test_an_outage_longer_than_a_lease_costs_no_line_and_no_attempt(
    make_workshop: MakeWorkshop,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
    hurry: threading.Event,
    first: str,
) -> None:
    workshop = make_workshop("stub:?rows=8&step_ms=100")
    job_id = workshop.make_job(160)  # a quarter of a minute's work
    live = start_worker(workshop)
    away = {"writer": threading.Event(), "keeper": threading.Event()}
    refused: set[str] = set()

    def unless_away(module: object, name: str, whose: str) -> None:
        real = getattr(module, name)

        def call(*args: object) -> object:
            if away[whose].is_set():
                refused.add(name)
                raise OperationalError("UPDATE", None, Exception("the server is away"))
            return real(*args)

        monkeypatch.setattr(module, name, call)

    unless_away(writer, "commit_results", "writer")
    unless_away(feeder, "claim_shards", "writer")
    unless_away(keeper, "beat", "keeper")
    wait_until(lambda: settled(workshop, job_id) > 0)
    for event in away.values():
        event.set()
    wait_until(lambda: refused >= {"commit_results", "beat"})
    workshop.lapse(live.id)
    # Nobody frees what has lapsed: who would was cut off as well, and waits before it judges.
    done = settled(workshop, job_id)
    live_leases = select(func.count()).where(Shard.lease_expires_at > func.now())
    away[first].clear()
    if first == "writer":
        wait_until(lambda: settled(workshop, job_id) > done)
    else:
        wait_until(lambda: workshop.scalar(live_leases))
    for event in away.values():
        event.clear()
    hurry.set()
    wait_until(lambda: settled(workshop, job_id) == 160)
    assert {shard.attempt for shard in workshop.shards(job_id)} == {1}
    assert workshop.worker(live.id).stale_results == 0


def test_lost_connections_cost_no_line_and_no_worker(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=16&step_ms=10")
    job_id = workshop.make_job(400)
    live = start_worker(workshop)
    for step in (20, 100, 180, 260):
        wait_until(lambda step=step: settled(workshop, job_id) >= step)  # type: ignore[misc]
        with workshop.sessions.begin() as session:
            session.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                    " AND backend_type = 'client backend' AND usename = current_user"
                )
            )
    finish(workshop, job_id)
    job = workshop.job(job_id)
    assert (job.state, job.totals.succeeded, job.totals.failed) == ("completed", 400, 0)
    assert len(workshop.usage(job_id)) == 400
    assert workshop.worker(live.id).state == "ready"


def test_a_worker_has_the_models_of_a_job_one_after_the_other(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?load_ms=100")
    other = workshop.make_model("org/other", "stub:?load_ms=300")
    named = ["org/stub", "org/other"] * 6
    lines = [make_item(f"line-{n}", model=name) for n, name in enumerate(named)]
    job_id = workshop.make_job(lines)
    with standstill(0.01) as lost:
        start_worker(workshop)
        finish(workshop, job_id)
    assert workshop.job(job_id).totals.succeeded == 12
    first, second = workshop.rows(select(Worker).order_by(Worker.id))
    first, second = first[0], second[0]
    assert (first.state, first.end_reason) == ("ended", "made room for org/other")
    assert (second.state, second.model_id, second.pid) == ("ready", other.id, first.pid)
    assert (first.load_us >= 100_000, second.load_us >= 300_000) == (True, True)
    for idx, row in workshop.usage(job_id).items():
        assert row.worker_id == (second.id if idx % 2 else first.id)
    with workshop.sessions() as session:
        accounts = {account.worker_id: account for account in worker_accounts(session)}
    account = accounts[first.id]
    assert abs(account.gap) < 0.05 + lost.us / account.wall_us
    assert not any(shard.state == "leased" for shard in workshop.shards(job_id))


def test_a_worker_that_is_told_to_end_while_it_loads_ends_in_order(
    make_workshop: MakeWorkshop, start_worker: StartWorker, hurry: threading.Event
) -> None:
    workshop = make_workshop("stub:?load_ms=600000")
    live = start_worker(workshop)
    assert workshop.worker(live.id).state == "starting"
    live.worker.drain()
    hurry.set()
    live.stop()
    assert workshop.worker(live.id).state == "ended"


def test_a_worker_asked_through_the_database_to_drain_does_so(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop()
    live = start_worker(workshop)
    wait_until(lambda: workshop.worker(live.id).state == "ready")
    workshop.execute(update(Worker).values(state="draining"))
    assert live.ended.wait(PATIENCE)
    assert workshop.worker(live.id).state == "ended"


def test_a_worker_commits_in_packs_and_the_last_job_asks_for_its_files(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=128", shard_lines=64)
    job_id = workshop.make_job(128)
    start_worker(workshop)
    wait_until(lambda: workshop.job(job_id).state == "finalizing")
    assert {ring.bell for ring in workshop.rings} >= {"finalise"}
    assert workshop.scalar(select(Job.outcome)) == "completed"


def test_every_answer_is_committed_before_its_lease_is_given_back(
    make_workshop: MakeWorkshop, start_worker: StartWorker
) -> None:
    workshop = make_workshop("stub:?rows=32&step_ms=50", grace_seconds=0.0)
    job_id = workshop.make_job(1000)  # a quarter of a minute's work
    for _ in range(4):
        live = start_worker(workshop)
        before = settled(workshop, job_id)
        wait_until(lambda before=before: settled(workshop, job_id) > before)  # type: ignore[misc]
        live.stop()
        assert workshop.worker(live.id).stale_results == 0
        assert not any(shard.state == "leased" for shard in workshop.shards(job_id))
    results: dict[int, FinishedItem] = workshop.results(job_id)  # type: ignore[assignment]
    assert len(results) == len(workshop.usage(job_id))


def test_a_profile_of_the_stub_is_refused_and_the_lines_are_answered(
    workshop: Workshop, start_worker: StartWorker
) -> None:
    live = start_worker(workshop)
    wait_until(lambda: workshop.worker(live.id).state == "ready")
    with workshop.sessions.begin() as session:
        order = profiles.ask(session, live.id, 3, 60)

    def state() -> str:
        with workshop.sessions.begin() as session:
            return profiles.state_of(session, order)

    wait_until(lambda: state() == "taken")
    job_id = workshop.make_job(5)
    wait_until(lambda: workshop.rows(select(Profile.problem).where(Profile.state == "failed")))
    with pytest.raises(profiles.ProfileFailed, match="stub"):
        state()
    wait_until(lambda: workshop.job(job_id).totals.succeeded == 5)
