"""``/api/usage`` and the command line of costs: one bill, told in every form."""

import csv
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from flask.testing import FlaskClient
from sqlalchemy import update
from typer.testing import CliRunner
from wire_lines import chat

from runner.cli.app import app as cli
from runner.db.models import UsageDay
from runner.runtime import Runtime

RunBatch = Callable[..., dict[str, Any]]
NANO = 10**9


@pytest.fixture
def batch(run_batch: RunBatch, model: str) -> dict[str, Any]:
    """A batch that has ended: two good lines with a tag."""
    return run_batch(
        chat("a", model=model) + b"\n" + chat("b", model=model), tags=["night", "eval"]
    )


def billed(batch: dict[str, Any]) -> int:
    return int(Decimal(batch["cost"]["billed"]) * NANO)


def test_usage_is_what_the_batch_says(api: FlaskClient, batch: dict[str, Any]) -> None:
    told = api.get("/api/usage?group_by=day,model,job").get_json()
    (group,) = told["data"]
    today = datetime.now(UTC).date().isoformat()
    assert group["group"]["job"] == batch["id"]
    assert group["group"]["day"] in (today, told["data"][0]["group"]["day"])
    assert group["lines"] == 2
    assert group["input_tokens"] == batch["usage"]["input_tokens"]
    assert group["output_tokens"] == batch["usage"]["output_tokens"]
    assert group["cost"]["billed"] == told["total"]["cost"]["billed"] == batch["cost"]["billed"]
    assert group["cost"]["run"] == batch["cost"]["run"]
    margin = billed(batch) - int(Decimal(batch["cost"]["run"]) * NANO)
    assert group["cost"]["margin_nano"] == margin
    assert told["latency_ms"]["total"]["p50"] is not None
    assert group["joules"] is None


def test_groups_and_filters_are_those_that_are_asked_for(
    api: FlaskClient, batch: dict[str, Any]
) -> None:
    tags = api.get("/api/usage?group_by=tag").get_json()
    assert {group["group"]["tag"] for group in tags["data"]} == {"night", "eval"}
    assert tags["total"]["lines"] == 2
    tomorrow = (datetime.now(UTC) + timedelta(days=1)).date().isoformat()
    for query in (f"from={tomorrow}", "tag=other", "model=x", "key=x", "schedule=x", "job=x"):
        assert api.get(f"/api/usage?{query}").get_json()["total"]["lines"] == 0, query
    within = api.get(f"/api/usage?to={tomorrow}&tag=night&job={batch['id']}").get_json()
    assert (within["total"]["lines"], within["last_day"]) == (2, tomorrow)


def test_files_say_the_same(api: FlaskClient, batch: dict[str, Any]) -> None:
    table = api.get("/api/usage?format=csv&group_by=job")
    assert table.mimetype == "text/csv"
    assert "attachment" in table.headers["Content-Disposition"]
    (row,) = csv.DictReader(io.StringIO(table.text))
    assert Decimal(row["billed"]) * NANO == billed(batch)
    parquet = pq.read_table(io.BytesIO(api.get("/api/usage?format=parquet").data)).to_pylist()
    assert sum(row["billed"] for row in parquet) * NANO == billed(batch)
    focus = list(csv.DictReader(io.StringIO(api.get("/api/usage?format=focus").text)))
    assert sum(Decimal(row["BilledCost"]) for row in focus) * NANO == billed(batch)
    assert {row["ResourceId"] for row in focus} == {batch["id"]}
    tags = json.loads(focus[0]["Tags"])
    assert tags["night"] == tags["eval"] == "true"


def test_another_project_has_spent_nothing(other: FlaskClient, batch: dict[str, Any]) -> None:
    told = other.get(f"/api/usage?job={batch['id']}&group_by=job").get_json()
    assert (told["data"], told["total"]["lines"]) == ([], 0)
    assert other.get("/api/usage?format=focus").text.count("\n") == 1


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("group_by=colour", "group_by"),
        ("group_by=day,day", "group_by"),
        ("from=yesterday", "from"),
        ("to=2026-13-01", "to"),
        ("from=2026-11-02&to=2026-11-01", "from"),
        ("format=xlsx", "format"),
    ],
)
def test_a_wrong_question_is_told_what_is_wrong(api: FlaskClient, query: str, param: str) -> None:
    answer = api.get(f"/api/usage?{query}")
    assert (answer.status_code, answer.get_json()["param"]) == (400, param)


def run_cli(runtime: Runtime, *arguments: str, code: int = 0) -> str:
    urls = {
        "DATABASE_URL": runtime.urls.database_url,
        "BROKER_URL": runtime.urls.broker_url,
        "COLUMNS": "200",
    }
    done = CliRunner(env=urls).invoke(cli, ["costs", *arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.stdout


def test_the_command_line_tells_the_same(
    runtime: Runtime, batch: dict[str, Any], tmp_path: Path
) -> None:
    told = json.loads(run_cli(runtime, "--by", "project,tag", "--json"))
    assert told["total"]["billed_nano"] == billed(batch)
    assert {tuple(one["group"].values()) for one in told["data"]} == {
        ("one", "night"),
        ("one", "eval"),
    }
    assert "in all" in run_cli(runtime, "--by", "day", "--project", "one")
    target = tmp_path / "costs.parquet"
    run_cli(runtime, "--format", "parquet", "--output", str(target))
    assert pq.read_table(target).num_rows == 1
    assert run_cli(runtime, "--format", "focus").startswith("BilledCost,")
    run_cli(runtime, "--by", "colour", code=2)
    run_cli(runtime, "--project", "nobody", code=2)
    run_cli(runtime, "--from", "2026-11-02", "--to", "2026-11-01", code=2)
    (worker,) = json.loads(run_cli(runtime, "workers", "--json"))
    assert worker["shared_us"] > 0
    assert "ended" in run_cli(runtime, "workers")


def test_the_command_line_finds_and_mends_a_difference(
    runtime: Runtime, batch: dict[str, Any]
) -> None:
    assert "to the last nano-unit" in run_cli(runtime, "check")
    with runtime.transaction() as session:
        session.execute(update(UsageDay).values(billed_nano=UsageDay.billed_nano + 1))
    (found,) = json.loads(run_cli(runtime, "check", "--json", code=1))
    assert found["job_id"] == batch["id"]
    assert "1 jobs differed, 1" in run_cli(runtime, "rebuild")
    assert json.loads(run_cli(runtime, "check", "--json")) == []


def test_each_line_tells_what_it_took(api: FlaskClient, batch: dict[str, Any]) -> None:
    path = f"/api/jobs/{batch['id']}/usage"
    page = api.get(path).get_json()
    assert [line["custom_id"] for line in page["data"]] == ["a", "b"]
    assert sum(line["cost"]["billed_nano"] for line in page["data"]) == billed(batch)
    for line in page["data"]:
        computed, cached = line["computed_input_tokens"], line["cached_input_tokens"]
        assert line["input_tokens"] == computed + cached
        assert (line["attempt"], line["joules"]) == (1, None)
    first = api.get(f"{path}?limit=1").get_json()
    assert (first["has_more"], first["last_index"]) == (True, 0)
    second = api.get(f"{path}?limit=1&after=0").get_json()
    assert (second["has_more"], second["data"]) == (False, page["data"][1:])
    assert api.get(f"{path}?after=x").status_code == 400
