"""What the pages show, and that nothing in them is taken for HTML."""

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient
from visitor import Visitor, assert_harmless

import web
from runner.db.session import create_session_factory
from runner.runtime import Runtime
from web import create_app
from web.ui.headers import CONTENT_SECURITY_POLICY
from web.ui.words import money, span

Ingest = Callable[[str], None]
STATIC = Path(web.__file__).parent / "static"
ATTACKS = [
    "<script>alert(1)<\\x2fscript>",
    "<img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "<svg onload=alert(1)>",
    "{{ 7 * 7 }}{% raw %}",
    "<a href=javascript:alert(1)>x",
    "\u202egpj.exe",
    "&lt;b&gt;",
]


def _line(custom_id: str, model: str = "org/tiny", **body: object) -> bytes:
    message = {"role": "user", "content": "Tell me a tale."}
    told = {"model": model, "messages": [message], **body}
    url = "/v1/chat/completions"
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": told}
    return json.dumps(line).encode() + b"\n"


@pytest.fixture
def submit(visitor: Visitor, ingest: Ingest, model: str) -> Callable[..., str]:
    """Hands in a file by the form and has it read; returns the path of the job's page."""

    def submit(data: bytes, name: str = "lines.jsonl", **fields: str) -> str:
        answer = visitor.upload(data, name, **fields)
        assert answer.status_code == 303, answer.text
        ingest(answer.location.rpartition("/")[2])
        return answer.location

    return submit


def test_an_empty_list_shows_how_to_begin(visitor: Visitor) -> None:
    page = visitor.get("/").text
    assert_harmless(page)
    assert "No job yet" in page
    assert 'base_url="http://localhost/v1"' in page


def test_a_file_becomes_a_running_job(submit: Callable[..., str], visitor: Visitor) -> None:
    path = submit(b"".join(_line(f"a{n}") for n in range(3)), "prompts.jsonl")
    page = visitor.get(path).text
    assert_harmless(page)
    assert "prompts.jsonl" in page
    assert "in progress" in page
    assert re.search(r"<b>3</b> to go", page)
    assert f'hx-get="{path}/live?' in page
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page
    listed = visitor.get("/").text
    assert_harmless(listed)
    assert path in listed
    assert "0 of 3" in listed


def test_a_file_with_faults_is_stopped_and_every_fault_told(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    path = submit(_line("good") + b"nonsense\n" * 25)
    page = visitor.get(path).text
    assert_harmless(page)
    assert "no line was run" in page
    assert page.count("<code>invalid_json_line</code>") == 20
    assert "And 5 more" in page
    assert "hx-get" not in page
    assert "http-equiv" not in page
    assert "Cancel" not in page


def test_bad_lines_can_be_skipped(submit: Callable[..., str], visitor: Visitor) -> None:
    path = submit(_line("good") + b"nonsense\n" + _line("also"), on_invalid="skip")
    page = visitor.get(path).text
    assert_harmless(page)
    assert re.search(r'<b class="bad">1</b> failed</span> \+ <span><b>2</b> to go', page)
    assert page.count("<code>invalid_json_line</code>") == 1
    saved = visitor.get(f"{path}/errors")
    assert saved.headers["Content-Disposition"].startswith("attachment")
    assert saved.mimetype == "application/x-ndjson"
    assert saved.text.count("\n") == 1
    assert visitor.get(f"{path}/output").text == ""


def test_names_ids_and_messages_are_shown_as_text(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    for attack, choice in itertools.product(ATTACKS, ("skip", "fail")):
        bad = _line(attack, temperature=attack) + _line("twice") + _line(attack, model=attack)
        path = submit(bad + _line("twice") + _line("good"), f"{attack}.jsonl", on_invalid=choice)
        for shown in (path, f"{path}/live?seen=in_progress"):
            page = visitor.get(shown).text
            assert_harmless(page)
            assert "<svg onload" not in page
            assert "49{%" not in page
    for shown in ("/", "/live"):
        page = visitor.get(shown).text
        assert_harmless(page)
        assert "&lt;svg onload=alert(1)&gt;.jsonl" in page
        assert "\u202e" not in page


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"on_invalid": "perhaps"}, "on_invalid must be"),
        ({"endpoint": "/v1/moderations"}, "endpoint must be"),
        ({"purpose": "other"}, "purpose must be"),
        ({"else": "x"}, "Unknown parameter: else"),
    ],
)
def test_a_form_that_is_wrong_is_refused_in_words(
    visitor: Visitor, fields: dict[str, str], told: str
) -> None:
    answer = visitor.upload(b"{}", **fields)
    assert (answer.status_code, answer.mimetype) == (400, "text/html")
    assert told in answer.text
    assert_harmless(answer.text)


def test_a_form_without_a_file_says_so(visitor: Visitor) -> None:
    answer = visitor.upload(b"", "")
    assert answer.status_code == 400
    assert "Choose a file first" in answer.text


def test_a_file_too_large_is_refused_in_words(visitor: Visitor) -> None:
    answer = visitor.upload(b"x" * (4 * 1024**2))
    assert answer.status_code == 413
    assert "split it" in answer.text


def test_an_open_page_asks_ever_less_while_nothing_moves(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    path = submit(_line("a"))
    for page in (path, "/"):
        waits, asked = [], visitor.get(page).text
        for _ in range(7):
            found = re.search(r'hx-get="([^"]+)" .*load delay:(\d+)s,', asked)
            assert found is not None
            waits.append(int(found[2]))
            asked = visitor.get(found[1].replace("&amp;", "&")).text
            assert_harmless(asked)
            assert "<html" not in asked
        assert waits == [2, 4, 6, 8, 10, 10, 10]


def test_a_page_of_a_job_that_moved_on_is_loaded_anew(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    path = submit(_line("a"))
    answer = visitor.get(f"{path}/live?seen=validating+0&wait=nonsense")
    assert (answer.headers["HX-Refresh"], answer.text) == ("true", "")
    for wait in ("-5", "99999", "x"):
        assert visitor.get(f"{path}/live?seen=in_progress+x&wait={wait}").status_code == 200


def test_cancelling_asks_first_and_is_harmless_when_repeated(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    path = submit(_line("a"))
    assert "<summary" in visitor.get(path).text
    for _ in range(2):
        answer = visitor.post(f"{path}/cancel")
        assert (answer.status_code, answer.location) == (303, path)
    page = visitor.get(path).text
    assert ">cancelling<" in page
    assert "<summary" not in page
    ended = submit(b"nonsense")
    assert visitor.post(f"{ended}/cancel").location == ended


def test_old_jobs_are_a_page_away(visitor: Visitor) -> None:
    made = [visitor.upload(b"{}", f"n{n}.jsonl").location for n in range(27)]
    first = visitor.get("/").text
    found = re.search(r'href="(/\?after=[^"]+)"', first)
    assert found is not None
    second = visitor.get(found[1]).text
    assert_harmless(second)
    assert [path in first for path in made] == [False] * 2 + [True] * 25
    assert [path in second for path in made] == [True] * 2 + [False] * 25
    assert 'enctype="multipart/form-data"' not in second
    for wrong in ("x", "batch_" + "0" * 26):
        assert visitor.get(f"/?after={wrong}").status_code == 404


def test_every_answer_of_the_page_forbids_what_it_does_not_need(visitor: Visitor) -> None:
    paths = ["/", "/live", "/signin", "/jobs/none", "/static/style.css", "/static/none"]
    for path in paths:
        answer = visitor.get(path)
        answer.close()
        assert answer.headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "same-origin"
    assert "unsafe" not in CONTENT_SECURITY_POLICY
    assert visitor.get("/").headers["Cache-Control"] == "no-store"
    assert (
        visitor.get("/v1/files")
        .headers["Content-Security-Policy"]
        .startswith("default-src 'none'; base-uri")
    )


def test_htmx_is_told_to_run_nothing(visitor: Visitor) -> None:
    found = re.search(r"name=\"htmx-config\" content='([^']+)'", visitor.get("/").text)
    assert found is not None
    config = json.loads(found[1])
    assert not config["allowEval"]
    assert not config["includeIndicatorStyles"]
    assert not config["allowScriptTags"]
    assert config["selfRequestsOnly"]


def test_what_is_vendored_is_what_was_written_down() -> None:
    listed = re.findall(r"`(vendor/\S+?\.js)`.*\b([0-9a-f]{64})\b", _read("VENDORED.md"))
    assert {name for name, _ in listed} == {
        f"vendor/{path.name}" for path in (STATIC / "vendor").glob("*.js")
    }
    for name, digest in listed:
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert re.search(r"url\(|@import|https?:", _read("style.css")) is None


def test_failures_are_pages_too(visitor: Visitor) -> None:
    missing = visitor.get("/jobs/batch_none")
    assert (missing.status_code, missing.mimetype) == (404, "text/html")
    assert "There is no such job" in missing.text
    assert_harmless(missing.text)


@pytest.fixture
def without_database(runtime: Runtime) -> Iterator[FlaskClient]:
    lost = create_session_factory("postgresql+psycopg://nobody@127.0.0.1:1/nothing")
    yield create_app(replace(runtime, sessions=lost)).test_client()
    lost.kw["bind"].dispose()


def test_a_database_that_is_away_is_told_on_a_page(without_database: FlaskClient) -> None:
    without_database.set_cookie("tokenmill_session", "any")
    answer = without_database.get("/")
    assert (answer.status_code, answer.mimetype) == (503, "text/html")
    assert "The database cannot be reached at the moment" in answer.text
    assert without_database.get("/signin").status_code == 200


def test_figures_read_well_and_lose_nothing() -> None:
    amounts = (0, 1, 711_700, 1_500_000_000, 12_345_000_000_000)
    assert [money(nano) for nano in amounts] == [
        "$0.00",
        "$0.000000001",
        "$0.0007117",
        "$1.50",
        "$12,345.00",
    ]
    lengths = (None, 0, 67_712, 999_499, 999_999, 26_090_000, 69_000_000, 7_260_000_000)
    assert [span(micros) for micros in lengths] == [
        "–",
        "0 ms",
        "67.7 ms",
        "999 ms",
        "1.00 s",
        "26.09 s",
        "1 min 9 s",
        "2 h 1 min",
    ]


def _read(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def test_a_job_is_paused_and_resumed_by_its_page(
    submit: Callable[..., str], visitor: Visitor
) -> None:
    path = submit(_line("a"))
    assert "Resume" not in visitor.get(path).text
    for _ in range(2):
        answer = visitor.post(f"{path}/pause")
        assert (answer.status_code, answer.location) == (303, path)
    page = visitor.get(path).text
    assert_harmless(page)
    assert ">paused<" in page
    assert ">Pause<" not in page
    assert "goes on when it is resumed" in page
    assert visitor.get(f"{path}/live?seen=in_progress+x").headers["HX-Refresh"] == "true"
    assert visitor.get(f"{path}/live?seen=in_progress-paused+x").status_code == 200
    visitor.post(f"{path}/resume")
    assert ">Pause<" in visitor.get(path).text
    visitor.post(f"{path}/cancel")
    assert ">Pause<" not in visitor.get(path).text
    for deed in ("pause", "resume"):
        assert visitor.post(f"{path}/{deed}").location == path
