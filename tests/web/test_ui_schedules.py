"""The pages of schedules, as a browser without a script uses them."""

import re
from dataclasses import replace

from sqlalchemy import select, update
from visitor import FilledForm, Visitor, assert_harmless

from runner.db.models import File, Schedule
from runner.runtime import Runtime
from runner.services.run_starts import start_runs
from runner.services.schedule_records import Terms, terms_of

FORM = {
    "name": "nightly", "cron": "30 5 * * *", "zone": "Europe/Berlin", "source": "tag",
    "input": "prompts", "endpoint": "/v1/chat/completions", "catch_up": "all", "overlap": "queue",
}  # fmt: skip
OPTIONS = {
    "priority": "7", "window": "30m", "run_hours": "22:00-06:00 UTC", "on_invalid": "fail",
    "dedupe": "job",
    "max_cost": "1250.5", "on_budget": "pause", "tags": "search\r\nnight shift",
    "metadata": '{"team": "a=b"}', "defaults": '{"stop": "</textarea>"}',
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
    assert "At 05:30 every day, Europe/Berlin" in page
    assert len(re.findall(r"\d\d 05:30 CES?T", page)) == 5
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


def test_options_survive_a_change_stay_when_left_out_and_go_when_emptied(
    visitor: Visitor, runtime: Runtime
) -> None:
    def terms() -> Terms:
        with runtime.sessions() as session:
            return terms_of(session.scalars(select(Schedule)).one())

    where = visitor.post("/schedules", **FORM | OPTIONS).location
    made = terms()
    assert (made.priority, made.completion_window, made.on_invalid) == (7, "30m", "fail")
    assert made.dedupe == "job"
    assert (made.max_cost_nano, made.on_budget) == (1_250_500_000_000, "pause")
    assert (made.tags, made.metadata) == (("search", "night shift"), {"team": "a=b"})
    assert (made.run_hours, made.defaults) == (
        "22:00-06:00 UTC",
        b'{"stop": "</textarea>"}',
    )
    page = visitor.get(where).text
    assert_harmless(page)
    assert "It may cost $1,250.50 at most; one that will not fit runs as far as it goes" in page
    for form in (FilledForm(page, f"{where}/change").values, FORM):
        assert visitor.post(f"{where}/change", **form).status_code == 303
        assert terms() == made
    empty = dict.fromkeys(("run_hours", "max_cost", "tags", "metadata", "defaults"), "")
    visitor.post(f"{where}/change", **FORM | empty)
    assert terms() == replace(
        made, run_hours=None, max_cost_nano=None, tags=(), metadata=None, defaults=None
    )


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
        ({"source": "path", "input": "/etc/passwd"}, "TOKENMILL_PLACES"),
        ({"source": "file", "input": "x"}, "no such file"),
        ({"source": "?"}, "exactly one"),
        ({"name": ""}, "name has"),
        ({"priority": "x"}, "whole number"),
        ({"max_cost": "$5"}, "amount"),
        ({"metadata": '{"a": 1}'}, "JSON object of texts"),
        ({"defaults": "[]"}, "JSON object"),
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
