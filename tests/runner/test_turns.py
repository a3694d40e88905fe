"""Whose turn it is: fair between projects, urgent for deadlines, and only within the hours."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from sqlalchemy import func, select, update
from workshop import Workshop

from runner.db.models import FairShare, Job, Project
from runner.domain.ids import JobId, ModelId, ProjectId
from runner.domain.turns import Served, Turns, WaitingJob
from runner.services.turns import forget_served, served_since, waiting_jobs

NOW = datetime(2026, 1, 1, tzinfo=UTC)
ONE, TWO = ProjectId(UUID(int=1)), ProjectId(UUID(int=2))
SECOND = 1_000_000


def waiting(
    number: int,
    project: ProjectId,
    *,
    weight: int = 1,
    priority: int = 0,
    hours: float = 24,
    shards: int = 1000,
) -> WaitingJob:
    return WaitingJob(
        id=JobId(UUID(int=number)),
        model_id=ModelId(UUID(int=1)),
        project_id=project,
        weight=weight,
        priority=priority,
        expires_at=NOW + timedelta(hours=hours),
        seconds_left=hours * 3600,
        shards=shards,
        shard_lines=64,
    )


def shares(*jobs: WaitingJob, served: dict[ProjectId, Served], turns: int = 100) -> Counter[int]:
    return Counter(job_id.int for job_id in Turns(jobs, served).hand_out(turns))


EVEN = {ONE: Served(64 * SECOND, 6400), TWO: Served(64 * SECOND, 6400)}


def test_equal_projects_take_turns() -> None:
    given = [job_id.int for job_id in Turns([waiting(1, ONE), waiting(2, TWO)], EVEN).hand_out(6)]
    assert given == [1, 2, 1, 2, 1, 2]


def test_many_jobs_of_one_project_share_one_share() -> None:
    many = [waiting(number, ONE) for number in range(10, 20)]
    assert shares(*many, waiting(2, TWO), served=EVEN)[2] == 50


def test_a_share_is_in_proportion_to_the_weight() -> None:
    fresh = {ONE: Served(1.0, 1.0), TWO: Served(1.0, 1.0)}
    assert shares(waiting(1, ONE, weight=3), waiting(2, TWO), served=fresh) == {1: 75, 2: 25}


def test_a_share_is_of_device_time_not_of_lines() -> None:
    served = {ONE: Served(3 * SECOND, 1), TWO: Served(SECOND, 1)}
    jobs = waiting(1, ONE, shards=200), waiting(2, TWO, shards=200)
    given = shares(*jobs, served=served)
    assert given[2] == pytest.approx(75, abs=1)


def test_lines_in_hand_count_as_if_they_had_run() -> None:
    served = {ONE: Served(SECOND, 1, lines_in_hand=64 * 5), TWO: Served(SECOND, 1)}
    given = [job_id.int for job_id in Turns([waiting(1, ONE), waiting(2, TWO)], served).hand_out(6)]
    assert given[:5] == [2] * 5
    assert given[5] == 1


def test_a_newcomer_without_a_past_shares_from_the_start_and_goes_first() -> None:
    served = {ONE: Served(640 * SECOND, 6400)}
    given = [job_id.int for job_id in Turns([waiting(1, ONE), waiting(2, TWO)], served).hand_out(9)]
    assert given[0] == 2


def test_priority_comes_before_any_share() -> None:
    served = {ONE: Served(10**12, 10**6), TWO: Served(0, 0)}
    assert shares(waiting(1, ONE, priority=1), waiting(2, TWO), served=served) == {1: 100}


def test_a_job_that_would_miss_its_deadline_gets_up_to_four_shares_and_starves_nobody() -> None:
    served = {ONE: Served(SECOND, 1), TWO: Served(SECOND, 1)}
    pressed = waiting(1, ONE, hours=1, shards=1000)  # 64,000 s of work in 3,600 s
    relaxed = waiting(2, TWO, hours=1, shards=20)  # 1,280 s of work
    given = shares(pressed, relaxed, served=served, turns=20)
    assert given[1] == pytest.approx(16, abs=1)


def test_half_of_the_time_left_is_time_enough() -> None:
    served = {ONE: Served(SECOND, 1), TWO: Served(SECOND, 1)}
    easy = waiting(1, ONE, hours=64 * 2 * 20 / 3600, shards=20)
    given = shares(easy, waiting(2, TWO, hours=10_000, shards=20), served=served, turns=10)
    assert given == {1: 5, 2: 5}


def test_within_a_project_the_nearest_deadline_goes_first() -> None:
    late, soon = waiting(1, ONE, hours=20), waiting(2, ONE, hours=2)
    assert [job.id.int for job in Turns([late, soon], {}).order()] == [2, 1]


def test_no_more_turns_are_given_than_there_are_shards() -> None:
    given = shares(waiting(1, ONE, shards=2), waiting(2, TWO, shards=1), served=EVEN)
    assert given == {1: 2, 2: 1}


def test_one_claim_takes_from_both_projects(workshop: Workshop) -> None:
    first, second = workshop.make_job(40), workshop.make_job(40, caller=workshop.make_caller("b"))
    held = workshop.claim(workshop.make_worker(), shards=6)
    assert Counter(lease.key.job_id for lease in held) == {first: 3, second: 3}


def test_what_others_took_meanwhile_is_made_up_for_by_other_jobs(workshop: Workshop) -> None:
    tail, long = workshop.make_job(4), workshop.make_job(40)
    workshop.make_worker(2)
    held = workshop.claim(workshop.make_worker(1), shards=4)
    assert {lease.key.job_id for lease in held} == {tail, long}


def served_minutes_ago(workshop: Workshop, minutes: int, project: ProjectId) -> Served:
    """What is left of what a project had so long ago, to the moment."""
    with workshop.sessions() as session:  # in which no time passes
        session.execute(update(FairShare).values(as_of=func.now() - timedelta(minutes=minutes)))
        return served_since(session, [project])[project]


def test_device_time_is_remembered_and_fades(workshop: Workshop) -> None:
    job_id = workshop.make_job(8)
    worker_id = workshop.make_worker()
    leases = workshop.claim(worker_id, shards=2)
    workshop.commit(worker_id, [item for lease in leases for item in workshop.answer(lease)])
    project = workshop.caller.project_id
    now, later = (served_minutes_ago(workshop, minutes, project) for minutes in (0, 2))
    assert now.lines == pytest.approx(8)
    spent = sum(row.device_us for row in workshop.usage(job_id).values())
    assert now.device_us == pytest.approx(spent)
    assert later.lines == pytest.approx(2)
    workshop.execute(update(FairShare).values(as_of=func.now() - timedelta(minutes=61)))
    with workshop.sessions.begin() as session:
        forget_served(session)
    assert workshop.rows(select(FairShare)) == []


def test_lines_in_hand_are_counted_by_project(workshop: Workshop) -> None:
    workshop.make_job(8)
    workshop.claim(workshop.make_worker())
    project = workshop.caller.project_id
    with workshop.sessions() as session:
        assert served_since(session, [project]) == {project: Served(0.0, 0.0, 4)}


def test_a_weight_is_read_from_the_project(workshop: Workshop) -> None:
    heavy = workshop.make_caller("heavy")
    workshop.execute(update(Project).where(Project.id == heavy.project_id).values(weight=3))
    first, second = workshop.make_job(80), workshop.make_job(80, caller=heavy)
    held = workshop.claim(workshop.make_worker(), shards=8)
    assert Counter(lease.key.job_id for lease in held) == {first: 2, second: 6}


def test_nothing_is_leased_before_the_start_or_outside_the_hours(workshop: Workshop) -> None:
    now = workshop.scalar(select(func.now()))
    assert isinstance(now, datetime)
    shut = f"{now + timedelta(hours=2):%H:%M}-{now + timedelta(hours=3):%H:%M}"
    wide = f"{now - timedelta(hours=1):%H:%M}-{now + timedelta(hours=1):%H:%M}"
    workshop.make_job(4, start_after=now + timedelta(hours=1), priority=9)
    night = workshop.make_job(4, run_hours=shut, priority=9)
    worker_id = workshop.make_worker()
    assert workshop.claim(worker_id, shards=9) == []
    open_now = workshop.make_job(4, run_hours=wide)
    begun = workshop.make_job(4, start_after=now - timedelta(hours=1))
    held = workshop.claim(worker_id, shards=9)
    assert {lease.key.job_id for lease in held} == {open_now, begun}
    with workshop.sessions() as session:  # nor does a worker make way for them
        assert waiting_jobs(session, workshop.model.id, above=0) == []
    workshop.execute(update(Job).where(Job.id == night).values(run_hours=None))
    with workshop.sessions() as session:
        assert [job.id for job in waiting_jobs(session, workshop.model.id, above=0)] == [night]
