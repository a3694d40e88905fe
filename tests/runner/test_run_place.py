"""What a run rests on: a place of its own, a job without a deadline, an engine that was ready."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import func, update
from workshop import Workshop

from runner.db.models import Job
from runner.domain.errors import StateConflict
from runner.offline.place import Order, Place
from runner.services import jobs, workers

ORDER = Order("00", "out.jsonl", "stub:", {"system": None, "max_tokens": 5})


def test_a_place_has_one_holder_and_the_next_waits_for_it(tmp_path: Path) -> None:
    first, second, told = Place(tmp_path / "p"), Place(tmp_path / "p"), threading.Event()
    first.take(print)
    waiting = threading.Thread(target=second.take, args=(lambda _: told.set(),))
    waiting.start()
    assert told.wait(90)
    first.begin(ORDER)
    first.remove()  # the one who waits must not hold a lock that nobody else can find
    first.leave()
    waiting.join(90)
    assert second.begin(ORDER) is None
    assert sorted(path.name for path in second.folder.iterdir()) == ["lock", "run.json"]
    second.leave()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input_sha256": "01"}, "another input"),
        ({"model": "stub:?rows=1"}, "another --model"),
        ({"options": {"system": "x", "max_tokens": 6}}, "another --max-tokens, --system"),
    ],
)
def test_a_run_goes_on_only_with_the_order_it_was_begun_with(
    tmp_path: Path, change: dict[str, object], named: str
) -> None:
    place = Place(tmp_path)
    place.begin(ORDER)
    assert place.begin(ORDER) is None
    with pytest.raises(StateConflict, match=named):
        place.begin(replace(ORDER, **change))


def test_a_finished_place_keeps_only_its_record(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.begin(ORDER)
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres" / "data").write_text("x")
    place.finish(ORDER, {"failed": 0})
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    assert place.begin(ORDER) == {"failed": 0}


def test_a_job_that_is_waited_for_does_not_expire(workshop: Workshop) -> None:
    job_id = workshop.make_job(2)
    workshop.execute(update(Job).values(expires_at=func.now()))
    with workshop.sessions.begin() as session:
        jobs.postpone_expiry(session, job_id)
    workshop.tick()
    assert workshop.job(job_id).state == "in_progress"


def test_a_worker_was_ready_once_its_model_was_loaded_even_when_it_is_dead(
    workshop: Workshop,
) -> None:
    with workshop.sessions.begin() as session:
        workers.register_worker(session, workers.NewWorker("engine", "here", 7))
    workshop.make_worker(pid=8)
    workshop.report_dead(pid=8)
    with workshop.sessions() as session:
        assert not workers.was_ready(session, "here", 7)
        assert workers.was_ready(session, "here", 8)
        assert not workers.was_ready(session, "here", 9)
