"""Costs by dimensions, and as files: every way of telling them adds up to the ledger."""

import csv
import io
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow.parquet as pq
import pytest
from sqlalchemy import func, insert, select, update
from workshop import MODEL, Workshop

from runner.db.models import Job, Price, Schedule, Usage
from runner.domain.errors import InvalidRequest
from runner.domain.focus import COLUMNS, split
from runner.domain.ids import API_KEY_PREFIX, JOB_PREFIX, encode, new_uuid
from runner.services import rollup
from runner.services.cost_exports import focus_csv, groups_csv, groups_parquet
from runner.services.costs import (
    Scope,
    Spent,
    latencies,
    read_dimensions,
    spent_by,
    spent_in_all,
)
from runner.services.models import PriceList

ODD = PriceList(333_333_331, 77_777_777, 999_999_937, 123_456_789)


@pytest.fixture
def spent(make_workshop: Callable[..., Workshop]) -> Workshop:
    """Three jobs of two projects: odd prices, two tags, a schedule, and a line of yesterday."""
    workshop = make_workshop()
    workshop.execute(
        update(Price).values(
            input_nano_per_million=ODD.input_nano_per_million,
            cached_nano_per_million=ODD.cached_nano_per_million,
            output_nano_per_million=ODD.output_nano_per_million,
            device_nano_per_hour=ODD.device_nano_per_hour,
        )
    )
    first = workshop.make_job(5, tags=("a", "b"))
    second = workshop.make_job(3, tags=("b",))
    workshop.make_job(2, caller=workshop.make_caller("garden"))
    schedule_id = new_uuid()
    workshop.execute(
        insert(Schedule).values(
            id=schedule_id,
            project_id=workshop.caller.project_id,
            name="nightly",
            cron="0 1 * * *",
            zone="UTC",
            catch_up="skip",
            overlap="skip",
            input_tag="t",
            endpoint="/v1/chat/completions",
            completion_window="24h",
            state="active",
            next_at=func.now(),
        )
    )
    workshop.execute(update(Job).where(Job.id == second).values(schedule_id=schedule_id))
    workshop.drain()
    cached = {"cached_tokens": 1}
    workshop.execute(update(Usage).where(Usage.job_id == first, Usage.idx < 2).values(cached))
    # All at noon, so that no midnight parts what ran together.
    noon = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
    workshop.execute(update(Usage).values(created_at=noon))
    yesterday = noon - timedelta(days=1)
    workshop.execute(
        update(Usage).where(Usage.job_id == first, Usage.idx == 0).values(created_at=yesterday)
    )
    with workshop.sessions.begin() as session:
        for job_id in session.scalars(select(Job.id)).all():
            rollup.rebuild(session, job_id)
    return workshop


def by(workshop: Workshop, dimensions: str, scope: Scope | None = None) -> list[Spent]:
    with workshop.sessions() as session:
        return spent_by(session, scope or Scope(), read_dimensions(dimensions))


def ledger(workshop: Workshop) -> tuple[int, int, int]:
    query = select(func.count(), func.sum(Usage.billed_nano), func.sum(Usage.run_cost_nano))
    (row,) = workshop.rows(query)
    return int(row[0]), int(row[1]), int(row[2])


def sums(groups: list[Spent]) -> tuple[int, int, int]:
    return (
        sum(group.lines for group in groups),
        sum(group.billed_nano for group in groups),
        sum(group.run_cost_nano for group in groups),
    )


@pytest.mark.parametrize(
    "dimensions", ["", "day", "project", "key", "model", "schedule", "job", "day,model,job,key"]
)
def test_every_way_of_grouping_adds_up_to_the_ledger(spent: Workshop, dimensions: str) -> None:
    assert sums(by(spent, dimensions)) == ledger(spent)


def test_groups_are_told_by_names_and_outer_ids(spent: Workshop) -> None:
    assert {group.group for group in by(spent, "project,model")} == {
        ("house", MODEL),
        ("garden", MODEL),
    }
    keys = {group.group[0] for group in by(spent, "key", Scope(spent.caller.project_id))}
    assert keys == {encode(API_KEY_PREFIX, spent.caller.api_key_id)}
    schedules = {group.group[0]: group.lines for group in by(spent, "schedule")}
    assert schedules == {None: 7, "nightly": 3}
    days = by(spent, "day")
    assert [group.lines for group in days] == [1, 9]
    assert days[0].group < days[1].group


def test_a_job_counts_under_each_of_its_tags(spent: Workshop) -> None:
    assert {group.group[0]: group.lines for group in by(spent, "tag")} == {
        "a": 5,
        "b": 8,
        None: 2,
    }


def test_a_scope_takes_only_what_is_asked_for(spent: Workshop) -> None:
    today = spent.scalar(select(func.max(Usage.created_at))).astimezone(UTC).date()
    lines = {
        Scope(): 10,
        Scope(spent.caller.project_id): 8,
        Scope(first=today): 9,
        Scope(last=today - timedelta(days=1)): 1,
        Scope(tag="a"): 5,
        Scope(tag="b"): 8,
        Scope(model=MODEL): 10,
        Scope(model="other"): 0,
        Scope(schedule="nightly"): 3,
        Scope(key=encode(API_KEY_PREFIX, spent.caller.api_key_id)): 8,
        Scope(key="nonsense"): 0,
        Scope(job=encode(JOB_PREFIX, new_uuid())): 0,
    }
    with spent.sessions() as session:
        assert {scope: spent_in_all(session, scope).lines for scope in lines} == lines


def test_an_unknown_dimension_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no dimension"):
        read_dimensions("day,colour")
    with pytest.raises(InvalidRequest, match="twice"):
        read_dimensions("day,day")
    assert read_dimensions(" day, tag ,") == ("day", "tag")


def test_latencies_of_a_scope_count_each_line_once(spent: Workshop) -> None:
    spent.execute(update(Usage).values(total_us=1 << 20))
    with spent.sessions.begin() as session:
        for job_id in session.scalars(select(Job.id)).all():
            rollup.rebuild(session, job_id)
        told = latencies(session, Scope(tag="b"))
        nothing = latencies(session, Scope(model="other"))
    assert told[3].p50 == told[3].p99 == pytest.approx(1 << 20, rel=0.05)
    assert nothing[3].p50 is None


def test_csv_and_parquet_say_the_same_to_the_last_nano_unit(spent: Workshop) -> None:
    groups = by(spent, "day,job")
    rows = list(csv.DictReader(io.StringIO(groups_csv(groups, ("day", "job")).decode())))
    table = pq.read_table(io.BytesIO(groups_parquet(groups, ("day", "job")))).to_pylist()
    assert [Decimal(row["billed"]) for row in rows] == [row["billed"] for row in table]
    assert [row["job"] for row in rows] == [row["job"] for row in table]
    lines, billed, run_cost = ledger(spent)
    assert sum(row["lines"] for row in table) == lines
    assert sum(row["billed"] for row in table) * 10**9 == billed
    assert sum(row["run_cost"] for row in table) * 10**9 == run_cost
    assert sum(row["margin"] for row in table) * 10**9 == billed - run_cost
    assert {row["joules"] for row in table} == {None}


def test_nothing_spent_is_a_file_with_a_header(workshop: Workshop) -> None:
    assert groups_csv([], ("tag",)).decode().startswith("tag,lines,")
    assert pq.read_table(io.BytesIO(groups_parquet([], ("tag",)))).num_rows == 0
    with workshop.sessions() as session:
        assert focus_csv(session, Scope()).decode().splitlines() == [",".join(COLUMNS)]


# The columns that FOCUS 1.2 wants of every provider, then those that must not be null in a charge
# for usage, and the words that it allows.
MANDATORY = {
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ServiceCategory",
    "ServiceName",
}
NULLABLE = {"ChargeClass", "InvoiceId"}


def test_focus_rows_are_as_the_specification_wants_them(spent: Workshop) -> None:
    with spent.sessions() as session:
        text = focus_csv(session, Scope()).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert set(rows[0]) >= MANDATORY
    assert all(name in MANDATORY or name[:1].isupper() or name.startswith("x_") for name in rows[0])
    for row in rows:
        assert {name for name, value in row.items() if value == ""} <= NULLABLE
        assert row["ChargeCategory"] == "Usage"
        assert row["ServiceCategory"] == "AI and Machine Learning"
        assert row["ServiceSubcategory"] == "Generative AI"
        assert row["ChargeFrequency"] == "Usage-Based"
        assert (row["PricingCategory"], row["BillingCurrency"]) == ("Standard", "USD")
        product = Decimal(row["PricingQuantity"]) * Decimal(row["ListUnitPrice"])
        assert product == Decimal(row["ListCost"]) == Decimal(row["ContractedCost"])
        assert Decimal(row["ConsumedQuantity"]) == Decimal(row["PricingQuantity"]) * 1_000_000
        assert all(isinstance(value, str) for value in json.loads(row["Tags"]).values())
        for name in ("BillingPeriod", "ChargePeriod"):
            start, end = (datetime.fromisoformat(row[f"{name}{edge}"]) for edge in ("Start", "End"))
            assert start < end
            assert start.utcoffset() == timedelta()
        assert row["BillingPeriodStart"][8:] == "01T00:00:00Z"
        assert "e" not in (row["BilledCost"] + row["ListCost"]).lower()


def test_focus_costs_add_up_to_the_ledger(spent: Workshop) -> None:
    with spent.sessions() as session:
        rows = list(csv.DictReader(io.StringIO(focus_csv(session, Scope()).decode())))
    _, billed, run_cost = ledger(spent)
    assert sum(Decimal(row["BilledCost"]) for row in rows) * 10**9 == billed
    assert sum(Decimal(row["EffectiveCost"]) for row in rows) * 10**9 == billed
    assert sum(Decimal(row["x_RunCost"]) for row in rows) * 10**9 == run_cost
    tokens: dict[str, Decimal] = {}
    for row in rows:
        meter = row["SkuMeter"]
        tokens[meter] = tokens.get(meter, Decimal()) + Decimal(row["ConsumedQuantity"])
    prompt, cached, output = spent.rows(
        select(
            func.sum(Usage.prompt_tokens),
            func.sum(Usage.cached_tokens),
            func.sum(Usage.output_tokens),
        )
    )[0]
    assert tokens == {
        "Input tokens": prompt - cached,
        "Cached input tokens": cached,
        "Output tokens": output,
    }


def test_shares_add_up_and_are_never_negative() -> None:
    for total in range(40):
        for weights in ([1, 1, 1], [0, 5, 1], [7], [0, 0], [10**20, 1]):
            shares = split(total, weights)
            assert sum(shares) == total
            assert min(shares) >= 0
    assert split(5, []) == []


def test_margin_is_what_is_left_of_the_bill() -> None:
    group = Spent((), billed_nano=3, run_cost_nano=5)
    assert replace(group, lines=1).margin_nano == -2
