"""Input from a folder, and output written back there once its job has ended."""

import json
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import func, select, update
from timetable import Timetable
from workshop import Workshop, joined, make_items

from runner.db.models import File, Job, ScheduleRun
from runner.domain.errors import InvalidRequest
from runner.services.schedule_records import RunRecord, ScheduleRecord

ZONE = "Australia/Lord_Howe"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path


@pytest.fixture
def timetable(make_workshop: Callable[..., Workshop], folder: Path) -> Timetable:
    return Timetable(make_workshop(places=(str(folder),)))


@pytest.fixture(autouse=True)
def long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause after a failed try is longer than any machine stands still."""
    monkeypatch.setattr("runner.services.run_starts._FIRST_PAUSE", 600)


def dated(folder: Path, run: RunRecord, ending: str = ".jsonl") -> Path:
    return folder / f"{run.planned_at.astimezone(ZoneInfo(ZONE)):%Y-%m-%d}{ending}"


def make(timetable: Timetable, folder: Path, **fields: object) -> ScheduleRecord:
    """Reads and writes by the date."""
    paths = {
        "input_path": f"file://{folder}/in/%Y-%m-%d.jsonl",
        "output_path": f"{folder}/out/%Y-%m-%d.jsonl",
    }
    return timetable.make(zone=ZONE, **paths | fields)


def begin(timetable: Timetable, folder: Path, content: bytes, **fields: object) -> ScheduleRecord:
    """A schedule with a started run on a file of that content."""
    schedule = make(timetable, folder, **fields)
    run = timetable.run_now(schedule)
    dated(folder / "in", run).write_bytes(content)
    assert timetable.start() == 1
    return schedule


def test_input_and_output_are_found_by_the_date_in_the_schedules_zone(
    timetable: Timetable, folder: Path
) -> None:
    lines = [*make_items(2), b"nonsense"]
    schedule = begin(timetable, folder, joined(lines))
    run = timetable.run(schedule)
    assert run.output_state == "waiting"
    assert timetable.write() == 0  # its job has not ended
    timetable.finish()
    assert timetable.write() == 1
    assert timetable.write() == 0
    assert timetable.run(schedule).output_state == "written"
    assert run.job is not None
    with timetable.workshop.sessions() as session:
        assert session.get_one(File, run.job.input_file_id).filename == dated(folder, run).name
    out = folder / "out"
    answers = dated(out, run).read_bytes()
    assert answers == timetable.workshop.snapshot(run.job.id, "output")
    assert [json.loads(line)["custom_id"] for line in answers.splitlines()] == ["line-0", "line-1"]
    errors = dated(out, run, ".errors.jsonl").read_bytes()
    assert errors == timetable.workshop.snapshot(run.job.id, "error")
    assert len(list(out.iterdir())) == 2


def test_errors_of_an_earlier_run_of_the_same_name_go(timetable: Timetable, folder: Path) -> None:
    always = f"{folder}/out/always.jsonl"
    lines = joined([*make_items(1), b"nonsense"])
    schedule = begin(timetable, folder, lines, output_path=always)
    timetable.finish()
    timetable.write()
    assert len(list((folder / "out").iterdir())) == 2
    run = timetable.run_now(schedule)
    dated(folder / "in", run).write_bytes(joined(make_items(1)))
    timetable.start()
    timetable.finish()
    timetable.write()
    assert [str(path) for path in (folder / "out").iterdir()] == [always]


def test_a_file_that_is_not_there_is_named(timetable: Timetable, folder: Path) -> None:
    schedule = make(timetable, folder)
    run = timetable.run_now(schedule)
    timetable.start()
    run = timetable.run(schedule)
    assert (run.state, run.code) == ("failed", "input_missing")
    assert str(dated(folder / "in", run)) in (run.reason or "")


def test_a_file_that_is_too_large_is_no_job(
    make_workshop: Callable[..., Workshop], folder: Path
) -> None:
    timetable = Timetable(make_workshop(places=(str(folder),), max_file_bytes=10))
    schedule = make(timetable, folder)
    dated(folder / "in", timetable.run_now(schedule)).write_bytes(b"x" * 11)
    timetable.start()
    assert timetable.run(schedule).code == "file_too_large"
    assert timetable.workshop.scalar(select(func.count()).select_from(File)) == 0


def test_a_store_that_is_away_is_asked_again_and_at_last_given_up(
    timetable: Timetable, folder: Path
) -> None:
    (folder / "in").rename(folder / "away")
    (folder / "in").write_text("no folder")
    schedule = make(timetable, folder)
    timetable.run_now(schedule)
    for number in range(1, 7):
        timetable.start()
        timetable.start()  # not before its pause is over
        run = timetable.run(schedule)
        assert run.code == "store_unreachable"
        assert run.state == ("failed" if number == 6 else "waiting")
        timetable.is_patient(run.id)
    asked_again = timetable.run_now(schedule)
    timetable.start()
    (folder / "in").unlink()
    (folder / "away").rename(folder / "in")
    dated(folder / "in", asked_again).write_bytes(joined(make_items(1)))
    timetable.is_patient(asked_again.id)
    timetable.start()
    run = timetable.run(schedule)
    assert (run.state, run.code, run.reason) == ("started", None, None)


def test_an_output_that_cannot_be_written_is_tried_again(
    timetable: Timetable, folder: Path
) -> None:
    schedule = begin(timetable, folder, joined(make_items(1)))
    timetable.finish()
    (folder / "out").write_text("no folder")
    assert timetable.write() == 0
    run = timetable.run(schedule)
    assert run.output_state == "waiting"
    assert "cannot be reached" in (run.output_problem or "")
    (folder / "out").unlink()
    assert timetable.write() == 0
    timetable.is_patient(run.id)
    assert timetable.write() == 1
    run = timetable.run(schedule)
    assert (run.output_state, run.output_problem) == ("written", None)


def test_an_output_is_given_up_after_twelve_tries_or_when_it_is_hopeless(
    timetable: Timetable, folder: Path
) -> None:
    schedule = begin(timetable, folder, b"nonsense", on_invalid="fail")
    timetable.finish()
    timetable.write()
    run = timetable.run(schedule)
    assert (run.outcome, run.output_state) == ("failed", "failed")
    assert "no line was run" in (run.output_problem or "")
    timetable.workshop.execute(update(Job).values(schedule_id=None))
    (folder / "out").write_text("no folder")
    other = begin(timetable, folder, joined(make_items(1)), name="other")
    timetable.finish()
    timetable.workshop.execute(update(ScheduleRun).values(tries=11))
    timetable.write()
    assert timetable.run(other).output_state == "failed"


def test_no_output_is_written_where_none_is_asked_for(timetable: Timetable, folder: Path) -> None:
    schedule = begin(timetable, folder, joined(make_items(1)), output_path=None)
    timetable.finish()
    assert timetable.write() == 0
    assert timetable.run(schedule).output_state == "none"


def test_a_place_outside_the_allowed_ones_is_refused_when_the_schedule_is_made(
    timetable: Timetable, folder: Path
) -> None:
    for fields in ({"input_path": "/etc/passwd"}, {"output_path": "s3://elsewhere/a"}):
        with pytest.raises(InvalidRequest, match="TOKENMILL_PLACES") as refusal:
            make(timetable, folder, **fields)
        assert refusal.value.param in fields
