"""``tokenmill demo``: a real file through the whole path, in a few minutes, on any machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from runner.cli.console import AsJson, DataDir, money, print_json, print_table, progress_console
from runner.cli.exit_codes import ExitCode
from runner.cli.installation import installation
from runner.config import Settings, load_settings
from runner.domain import ids
from runner.model_library import BUILTIN_MODEL, builtin_folder
from runner.services import keys, projects
from runner.services.line_usage import LineUsage, line_usage
from runner.services.reports import JobReport, job_report
from runner.supervisor import is_up, read_up_state

_QUESTIONS = "data/gsm8k-questions.jsonl"
_MAX_TOKENS = 128
_ANSWER_LETTERS = 60


def register(parent: typer.Typer) -> None:
    """Add ``demo`` to the command line."""
    parent.command()(demo)


def demo(
    questions: Annotated[int, typer.Option(min=1, max=40, help="How many to ask.")] = 40,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Answer real maths questions with a small real model, and show what each line took."""
    settings = load_settings(data_dir)
    tell(f"Everything is kept in {settings.data_dir}.")
    tell(f"Preparing the model {BUILTIN_MODEL} (converted once) …")
    builtin_folder(settings)
    source = settings.data_dir / "demo-input.jsonl"
    target = settings.data_dir / "demo-output.jsonl"
    write_questions(source, questions)
    with server(settings) as url, installation(data_dir) as runtime:
        with runtime.transaction() as session:
            record, secret = keys.create_key(session, "demo", "demo")
        tell(f"Submitting {source.name} through the openai client …")
        batch = _run_client(f"{url}/v1", secret, source, target)
        with runtime.transaction() as session:
            keys.revoke_key(session, record.id)
            owner = projects.find_project(session, "demo")
            job_id = ids.decode(ids.JOB_PREFIX, batch["id"])
            if job_id is None:
                raise typer.Exit(ExitCode.FAILURES)
            report = job_report(session, owner, job_id)
            lines = line_usage(session, job_id)
    _show(batch, report, lines, target, as_json)
    tell(f"The answers are in {target}.")
    tell(f"To go on: tokenmill up --data-dir {settings.data_dir}")
    tell("The page is then at http://127.0.0.1:8080/ and the API at its /v1; both want a key:")
    tell(f"tokenmill keys create --data-dir {settings.data_dir}")
    if report.job.totals.succeeded != questions:
        raise typer.Exit(ExitCode.FAILURES)


def write_questions(target: Path, count: int) -> None:
    """The demo's input file: one chat completion a question."""
    text = files("runner.cli").joinpath(_QUESTIONS).read_text(encoding="utf-8")
    with target.open("w", encoding="utf-8") as stream:
        for line in text.splitlines()[:count]:
            question = json.loads(line)
            body = {
                "model": BUILTIN_MODEL,
                "messages": [{"role": "user", "content": question["question"]}],
                "max_tokens": _MAX_TOKENS,
                "temperature": 0,
            }
            request = {
                "custom_id": f"question-{question['id']}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": body,
            }
            stream.write(json.dumps(request, ensure_ascii=False) + "\n")


@contextmanager
def server(settings: Settings) -> Iterator[str]:
    """The address of a running installation; one is started for the time if there is none."""
    state = read_up_state(settings.data_dir) if is_up(settings.data_dir) else None
    if state is not None:
        yield state.url
        return
    tell("Starting Postgres, Valkey, web, workers and the engine …")
    command = [sys.executable, "-m", "runner.cli", "up", "--port", "0", "--json"]
    command += ["--data-dir", str(settings.data_dir)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        ready = process.stdout.readline() if process.stdout else ""
        if not ready:
            raise typer.Exit(ExitCode.UNREACHABLE)
        yield str(json.loads(ready)["url"])
    finally:
        process.terminate()
        process.wait()


def _run_client(base_url: str, secret: str, source: Path, target: Path) -> dict[str, Any]:
    order = {
        "base_url": base_url,
        "api_key": secret,
        "input": str(source),
        "output": str(target),
    }
    done = subprocess.run(
        [sys.executable, "-m", "runner.cli.demo_client"],
        input=json.dumps(order),
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise typer.Exit(ExitCode.FAILURES)
    batch: dict[str, Any] = json.loads(done.stdout)
    return batch


def _show(
    batch: dict[str, Any],
    report: JobReport,
    lines: list[LineUsage],
    target: Path,
    as_json: bool,
) -> None:
    if as_json:
        print_json({"batch": batch, "report": report, "lines": lines, "output": target})
        return
    answers = _answers(target)
    rows = [
        (
            line.custom_id,
            line.prompt_tokens,
            line.cached_tokens,
            line.output_tokens,
            _seconds(line.queue_us),
            _seconds(line.first_token_us),
            _seconds(line.total_us),
            money(line.billed_nano, 9),
            money(line.run_cost_nano, 9),
            answers.get(line.custom_id, ""),
        )
        for line in lines
    ]
    columns = ("line", "in", "cached", "out", "queue s", "first s", "total s")
    print_table((*columns, "billed $", "cost $", "answer"), rows)
    _show_totals(report)


def _show_totals(report: JobReport) -> None:
    totals, job = report.job.totals, report.job
    ended, began = job.completed_at, job.in_progress_at
    seconds = (ended - began).total_seconds() if ended and began else 0.0
    percentiles = [
        f"{name} {_seconds(value.p50)}/{_seconds(value.p90)}/{_seconds(value.p99)} s"
        for name, value in (
            ("queue", report.account.queue),
            ("first token", report.account.first_token),
            ("total", report.account.total),
        )
    ]
    rows = [
        ("lines", f"{totals.succeeded} answered + {totals.failed} failed = {job.total}"),
        (
            "tokens",
            f"{totals.prompt_tokens} in ({totals.cached_tokens} cached), "
            f"{totals.output_tokens} out",
        ),
        (
            "speed",
            f"{totals.output_tokens / seconds:,.0f} tokens/s out, {seconds:.1f} s"
            if seconds
            else None,
        ),
        ("p50/p90/p99", "; ".join(percentiles)),
        ("billed", f"${money(totals.billed_nano, 9)}"),
        (
            "cost to run",
            f"${money(totals.run_cost_nano, 9)} "
            f"({report.account.device_us / 1e6:.1f} s of device time)",
        ),
    ]
    print_table(("", ""), rows)


def _answers(target: Path) -> dict[str, str]:
    """The end of each answer, where the result of a calculation stands."""
    found = {}
    for line in target.read_bytes().split(b"\n"):
        if line:
            entry = json.loads(line)
            text = entry["response"]["body"]["choices"][0]["message"]["content"]
            found[entry["custom_id"]] = "…" + " ".join(text.split())[-_ANSWER_LETTERS:]
    return found


def _seconds(microseconds: int | None) -> str:
    return "–" if microseconds is None else f"{microseconds / 1e6:.2f}"


def tell(text: str) -> None:
    """Say what happens, apart from the results."""
    progress_console.print(text, highlight=False)
