"""The pages of schedules, as a browser without a script uses them."""

import re

from sqlalchemy import update
from visitor import Visitor, assert_harmless

from runner.db.models import File
from runner.runtime import Runtime
from runner.services.run_starts import start_runs

FORM = {
    "name": "nightly", "cron": "30 2 * * *", "zone": "Europe/Berlin", "source": "tag",
    "input": "prompts", "endpoint": "/v1/chat/completions", "catch_up": "all", "overlap": "queue",
}  # fmt: skip
ATTACK = "<script>alert(1)</script>"


def test_an_empty_list_shows_how_to_begin(visitor: Visitor) -> None:
    page = visitor.get("/schedules").text
    assert_harmless(page)
    assert "No schedule yet" in page


def test_a_schedule_is_made_changed_and_ended_by_forms(visitor: Visitor) -> None:
    made = visitor.post("/schedules", **FORM)
    assert made.status_code == 303, made.text
    page = visitor.get(made.location).text
    assert_harmless(page)
    assert "At 02:30 every day, Europe/Berlin" in page
    assert len(re.findall(r"\d\d 02:30 CES?T", page)) == 5
    assert "It has not run yet" in page
    assert "selected>all, up to seven" in page
    changed = visitor.post(f"{made.location}/change", **FORM | {"cron": "0 9 * * 1-5"})
    assert changed.status_code == 303
    assert "At 09:00 on Monday through Friday" in visitor.get("/schedules").text
    visitor.post(f"{made.location}/pause")
    assert "None while it is paused" in visitor.get(made.location).text
    visitor.post(f"{made.location}/resume")
    assert visitor.post(f"{made.location}/delete").location == "/schedules"
    gone = visitor.get(made.location)
    assert gone.status_code == 404
    assert "no such schedule" in gone.text


def test_a_run_is_shown_with_its_job_or_with_the_reason_why_there_is_none(
    visitor: Visitor, runtime: Runtime
) -> None:
    where = visitor.post("/schedules", **FORM).location
    visitor.post(f"{where}/run")
    start_runs(runtime.sessions, runtime.settings)
    page = visitor.get(where).text
    assert "No file has the tag" in page
    assert "by hand" in page
    job = visitor.upload(b"{}").location
    with runtime.transaction() as session:
        session.execute(update(File).values(tags=["prompts"]))
    visitor.post(f"{where}/run")
    start_runs(runtime.sessions, runtime.settings)
    page = visitor.get(where).text
    assert_harmless(page)
    (path,) = set(re.findall(r'href="(/jobs/batch_\w+)"', page)) - {job}
    shown = visitor.get(path).text
    assert_harmless(shown)
    assert f'schedule <a href="{where}">nightly</a>' in shown


def test_a_form_that_is_wrong_is_told_why(visitor: Visitor) -> None:
    for wrong, words in (
        ({"cron": "x"}, "five fields"),
        ({"zone": "Mars"}, "no time zone"),
        ({"input": ""}, "which input"),
        ({"source": "path", "input": "/etc/passwd"}, "TOKENMILL_STORES"),
        ({"source": "file", "input": "x"}, "no such file"),
        ({"source": "?"}, "exactly one"),
        ({"name": ""}, "name has"),
    ):
        answer = visitor.post("/schedules", **FORM | wrong)
        assert answer.status_code == 400, wrong
        assert words in answer.text
    assert visitor.client.post("/schedules", data=FORM).status_code == 403


def test_names_and_inputs_are_shown_as_text(visitor: Visitor) -> None:
    where = visitor.post("/schedules", **FORM | {"name": ATTACK, "input": "<b>"}).location
    for path in (where, "/schedules"):
        page = visitor.get(path).text
        assert_harmless(page)
        assert ATTACK not in page
