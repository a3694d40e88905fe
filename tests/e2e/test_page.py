"""The page in a real browser, on an installation whose engine is the stub; needs Chromium."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from installation import Server, chat_line, run_cli, running_server
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

MODEL = "stub"
LINES = 40
HOSTILE = "<img src=x onerror=alert(1)>"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WAIT_MS = 90_000

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@pytest.fixture(scope="module")
def stub_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    data_dir = tmp_path_factory.mktemp("page")
    (data_dir / "models").mkdir()
    run_cli(data_dir, "models", "add", MODEL, "stub:?rows=4&step_ms=25")
    with running_server(data_dir, "--model", MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as playwright:
        expect.set_options(timeout=WAIT_MS)
        yield playwright


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    # Chromium's own sandbox does not work for root, as tests run in containers.
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, stub_server: Server) -> Iterator[Page]:
    """A page that may open no dialog, report nothing and ask nobody but the server."""
    context = browser.new_context()
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    told: list[str] = []
    own = urlsplit(stub_server.url).netloc
    page.on("dialog", lambda dialog: (told.append(dialog.message), dialog.dismiss()))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("console", lambda line: told.append(line.text) if line.type == "error" else None)
    page.on(
        "request", lambda sent: None if urlsplit(sent.url).netloc == own else told.append(sent.url)
    )
    yield page
    context.close()
    assert told == []


@pytest.fixture
def hostile_file(tmp_path: Path) -> Path:
    """Good lines, and some whose ids and parameters are meant for a careless page."""
    path = tmp_path / f"{HOSTILE}.jsonl"
    lines = [chat_line(f"{HOSTILE}{n}", MODEL, f"{HOSTILE} {n}") for n in range(LINES)]
    lines += [chat_line(f"bad{HOSTILE}", MODEL, "x", temperature=HOSTILE)]
    path.write_bytes(b"".join(lines))
    return path


def _sign_in(page: Page, server: Server) -> None:
    page.goto(server.url)
    page.get_by_label("API key").fill(server.key)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="New job")).to_be_visible()


def _hand_in(page: Page, path: Path) -> None:
    page.get_by_label("A file of prompts").set_input_files(path)
    page.get_by_label("skip it").check()
    page.get_by_role("button", name="Upload and start").click()
    page.wait_for_url("**/jobs/batch_*")


def test_a_job_runs_before_the_eyes_of_whoever_handed_it_in(
    page: Page, stub_server: Server, hostile_file: Path
) -> None:
    _sign_in(page, stub_server)
    _hand_in(page, hostile_file)
    expect(page.locator(".chip")).to_have_text("completed")
    expect(page.locator("h1")).to_contain_text(HOSTILE)
    expect(page.locator(".proof")).to_have_text(
        f"{LINES} succeeded + 1 failed = {LINES + 1} lines", use_inner_text=True
    )
    expect(page.locator(".errors tbody")).to_contain_text(f"bad{HOSTILE}")
    assert page.locator("[hx-get]").count() == 0  # it has stopped asking
    page.set_viewport_size({"width": 360, "height": 740})  # a small telephone
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    with page.expect_download() as saving:
        page.get_by_role("link", name="Save output").click()
    lines = Path(saving.value.path()).read_text().splitlines()
    assert [json.loads(line)["custom_id"] for line in lines] == [
        f"{HOSTILE}{n}" for n in range(LINES)
    ]
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    expect(page.get_by_role("link", name=f"{HOSTILE}.jsonl").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_the_list_follows_a_job_and_a_click_cancels_it(
    page: Page, stub_server: Server, tmp_path: Path
) -> None:
    long = tmp_path / "long.jsonl"
    long.write_bytes(b"".join(chat_line(f"{n}", MODEL, f"Tale {n}.") for n in range(5000)))
    _sign_in(page, stub_server)
    _hand_in(page, long)
    page.get_by_role("navigation").get_by_role("link", name="Jobs").click()
    row = page.get_by_role("row", name="long.jsonl")
    expect(row.get_by_role("link", name="output")).to_be_visible()
    row.get_by_role("link", name="long.jsonl").click()
    page.get_by_text("Cancel…").click()
    page.get_by_role("button", name="Cancel this job").click()
    expect(page.locator(".chip")).to_have_text("cancelled")
    expect(page.locator(".proof")).to_contain_text("= 5,000 lines")


def test_the_page_works_without_a_script(
    browser: Browser, stub_server: Server, hostile_file: Path
) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        context.set_default_timeout(WAIT_MS)
        page = context.new_page()
        _sign_in(page, stub_server)
        _hand_in(page, hostile_file)
        expect(page.locator(".chip")).to_have_text("completed")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("API key")).to_be_visible()


def test_a_form_of_another_site_changes_nothing(page: Page, stub_server: Server) -> None:
    _sign_in(page, stub_server)
    stranger = page.context.new_page()
    stranger.set_content(f"<form method=post action={stub_server.url}/signout><button>Win</button>")
    with stranger.expect_response(f"{stub_server.url}/signout") as refused:
        stranger.get_by_role("button").click()
    assert refused.value.status == 403
    stranger.close()
    page.reload()
    expect(page.get_by_role("heading", name="New job")).to_be_visible()
