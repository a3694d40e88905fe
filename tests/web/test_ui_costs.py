"""The page of costs, and the alerts on the pages of jobs."""

import csv
import io
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import insert, select
from visitor import Visitor
from wire_lines import chat

from runner.db.models import Alert, Model, Price, Project, UsageDay
from runner.domain.ids import JOB_PREFIX, decode, new_uuid
from runner.runtime import Runtime
from runner.services.models import NewModel, PriceList, register_model
from web.ui.charts import Series, biggest, days_between, side_by_side, stacked

RunBatch = Callable[..., dict[str, Any]]
TODAY = datetime.now(UTC).date()  # or yesterday, by the time that a test runs


@pytest.fixture
def month(runtime: Runtime, api_key: str) -> None:
    """The thirty days that a page shows, of two models, whichever of two days is today."""
    with runtime.transaction() as session:
        project_id = session.scalars(select(Project.id)).one()
        for number, name in enumerate(("org/<small>", "org/large")):
            new = NewModel(name=name, path="stub:", context_length=64, manifest={})
            model_id = register_model(session, new, PriceList()).id
            price_id = session.scalars(select(Price.id).where(Price.model_id == model_id)).one()
            session.execute(
                insert(UsageDay),
                [
                    _day(project_id, model_id, price_id, TODAY - timedelta(days=ago), number)
                    for ago in range(-1, 30)
                ],
            )


def _day(
    project_id: UUID, model_id: UUID, price_id: UUID, day: date, number: int
) -> dict[str, object]:
    lines = (day.toordinal() * 7919 + number * 31) % 900 + 100
    return {
        "job_id": new_uuid(),
        "day": day,
        "model_id": model_id,
        "price_id": price_id,
        "project_id": project_id,
        "lines": lines,
        "attempts": lines,
        "prompt_tokens": lines * 300,
        "cached_tokens": lines * 120,
        "output_tokens": lines * 80,
        "device_us": lines * 90_000,
        "preemptions": 0,
        "recomputed_tokens": 0,
        "truncated_lines": 0,
        "truncated_tokens": 0,
        "energy_uj": 0,
        "metered_lines": 0,
        "billed_nano": lines * 26_500 * (1 + number),
        "run_cost_nano": lines * 12_500,
    }


@pytest.mark.usefixtures("month")
def test_the_page_draws_each_day_and_names_each_model(visitor: Visitor, runtime: Runtime) -> None:
    text = visitor.get("/costs").text
    assert text.count('class="tone-0"') >= 30
    assert "org/&lt;small&gt;" in text
    assert "<small>" not in text
    assert "style=" not in text
    with runtime.transaction() as session:
        assert len(session.scalars(select(Model.id)).all()) == 2
    one = visitor.get("/costs?model=org/large").text
    assert "<option selected>org/large</option>" in one


@pytest.mark.usefixtures("month")
def test_days_can_be_chosen_and_wrong_ones_are_refused(visitor: Visitor) -> None:
    text = visitor.get(f"/costs?from={TODAY}&to={TODAY}").text
    assert f'value="{TODAY}"' in text
    assert visitor.get("/costs?from=soon").status_code == 400
    assert visitor.get(f"/costs?from={TODAY}&to=2026-01-01").status_code == 400
    assert "Nothing in these days" in visitor.get("/costs?from=2001-01-01&to=2001-01-02").text
    assert "No job in these days" in visitor.get("/costs?tag=none").text


@pytest.mark.usefixtures("month")
def test_the_page_s_files_hold_what_it_shows(visitor: Visitor) -> None:
    answer = visitor.get("/costs/export?format=csv&model=org/large")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["model"] for row in rows} == {"org/large"}
    assert len(rows) == 30
    focus = list(csv.DictReader(io.StringIO(visitor.get("/costs/export?format=focus").text)))
    whole = list(csv.DictReader(io.StringIO(visitor.get("/costs/export").text)))
    billed = sum(Decimal(row["billed"]) for row in whole)
    assert sum(Decimal(row["BilledCost"]) for row in focus) == billed
    assert visitor.get("/costs/export?format=parquet").data[:4] == b"PAR1"
    assert visitor.get("/costs/export?format=xlsx").status_code == 400


def test_a_job_s_alert_is_on_its_page_and_in_the_list(
    visitor: Visitor, runtime: Runtime, run_batch: RunBatch, model: str
) -> None:
    batch = run_batch(chat("a", model=model), tags=["t"])
    with runtime.transaction() as session:
        job_id = decode(JOB_PREFIX, batch["id"])
        assert job_id is not None
        session.add(Alert(job_id=job_id, kind="deadline", message="Too <late>."))
    page = visitor.get(f"/jobs/{batch['id']}").text
    assert "Deadline at risk." in page
    assert "Too &lt;late&gt;." in page
    assert "chip-risk" in visitor.get("/").text
    costs = visitor.get("/costs").text
    assert f"/jobs/{batch['id']}" in costs
    assert "lines.jsonl" in costs


def test_columns_reach_the_top_on_the_highest_day_and_stand_on_the_ground() -> None:
    days = days_between(TODAY - timedelta(days=1), TODAY)
    series = (Series("a", {days[0]: 3, days[1]: 1}), Series("b", {days[0]: 1}))
    chart = stacked(days, series, str)
    assert chart.top == 4
    assert [(bar.y, bar.height) for bar in chart.bars] == [(0.25, 0.75), (0.0, 0.25), (0.75, 0.25)]
    beside = side_by_side(days, series, str)
    assert beside.top == 3
    assert all(bar.y + bar.height == pytest.approx(1) for bar in beside.bars)
    assert stacked(days, (), str).bars == ()


def test_the_largest_series_have_colours_of_their_own() -> None:
    series = [Series(str(n), {TODAY: n}) for n in range(9)]
    shown = biggest(series)
    assert [one.name for one in shown] == ["8", "7", "6", "5", "4", "others"]
    assert shown[-1].total == 0 + 1 + 2 + 3
    assert len(days_between(TODAY - timedelta(days=500), TODAY)) == 92
