"""Charges in the form of FOCUS 1.2, the FinOps Open Cost and Usage Specification.

A day of a job at one price list becomes up to four charges, one for each meter. The list cost is
the product of quantity and unit price, unrounded. The billed cost is what the lines were billed,
each of which was rounded once: it is split over the meters by their list costs, so that all rows
together are the bill to the last nano-unit.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

from runner.domain.pricing import NANO, TOKENS_PER_QUOTE

PROVIDER = "Tokenmill"
TOKENS, LINES = "Tokens", "Lines"


@dataclass(frozen=True, slots=True)
class Meter:
    """A quantity of one kind, and its price in nano-units per million."""

    name: str
    quantity: int
    nano_per_million: int
    unit: str = TOKENS

    @property
    def weight(self) -> int:
        """The list cost in millionths of a nano-unit."""
        return self.quantity * self.nano_per_million

    @property
    def computed(self) -> int:
        """What of it took time of a device: tokens did, lines that were answered again did not."""
        return self.quantity if self.unit == TOKENS else 0


@dataclass(frozen=True, slots=True)
class DayOfJob:
    """What the charges of one day of a job say beside their meters. Money is in nano-units."""

    day: date
    project_id: str
    project: str
    job_id: str
    model: str
    price_id: str
    currency: str
    tags: dict[str, str]
    billed_nano: int
    run_cost_nano: int
    lines: int


COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingAccountType",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceId",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingCurrency",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
    "SkuId",
    "SkuMeter",
    "SkuPriceDetails",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "SubAccountType",
    "Tags",
    "x_RunCost",
)
"""Every column of an export; those whose names begin with ``x_`` are ours."""


def charges_of(day: DayOfJob, meters: Sequence[Meter]) -> Iterator[dict[str, str | None]]:
    """One charge for each meter that ran, by column."""
    used = [meter for meter in meters if meter.quantity]
    billed = split(day.billed_nano, [meter.weight for meter in used])
    run_cost = split(day.run_cost_nano, [meter.computed for meter in used])
    for meter, billed_nano, run_nano in zip(used, billed, run_cost, strict=True):
        row = {**_about(day), **_measured(meter, day)}
        row["BilledCost"] = row["EffectiveCost"] = _money(billed_nano)
        row["x_RunCost"] = _money(run_nano)
        yield {name: row[name] for name in COLUMNS}


def split(total: int, weights: Sequence[int]) -> list[int]:
    """Shares of a whole in proportion to weights; they add up, the heaviest takes the rest."""
    if not weights:
        return []
    whole = sum(weights)
    shares = [total * weight // whole if whole else 0 for weight in weights]
    shares[weights.index(max(weights))] += total - sum(shares)
    return shares


def _about(day: DayOfJob) -> dict[str, str | None]:
    start = datetime.combine(day.day, time(), UTC)
    month = start.replace(day=1)
    next_month = (month + timedelta(days=32)).replace(day=1)
    return {
        "BillingAccountId": PROVIDER.lower(),
        "BillingAccountName": PROVIDER,
        "BillingAccountType": "Installation",
        "BillingCurrency": day.currency,
        "BillingPeriodStart": _moment(month),
        "BillingPeriodEnd": _moment(next_month),
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodStart": _moment(start),
        "ChargePeriodEnd": _moment(start + timedelta(days=1)),
        "InvoiceId": None,
        "InvoiceIssuerName": PROVIDER,
        "PricingCategory": "Standard",
        "PricingCurrency": day.currency,
        "ProviderName": PROVIDER,
        "PublisherName": PROVIDER,
        "ResourceId": day.job_id,
        "ResourceName": day.job_id,
        "ResourceType": "Batch job",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": "Batch inference",
        "ServiceSubcategory": "Generative AI",
        "SubAccountId": day.project_id,
        "SubAccountName": day.project,
        "SubAccountType": "Project",
        "Tags": json.dumps(day.tags, ensure_ascii=False),
    }


def _measured(meter: Meter, day: DayOfJob) -> dict[str, str | None]:
    price = Decimal(meter.nano_per_million) / NANO
    cost = _plain(Decimal(meter.weight) / NANO / TOKENS_PER_QUOTE)
    kind = meter.name.lower()
    return {
        "ChargeDescription": f"{meter.quantity} {kind} of {day.model} in {day.lines} lines",
        "ConsumedQuantity": str(meter.quantity),
        "ConsumedUnit": meter.unit,
        "ContractedCost": cost,
        "ContractedUnitPrice": _plain(price),
        "ListCost": cost,
        "ListUnitPrice": _plain(price),
        "PricingQuantity": _plain(Decimal(meter.quantity) / TOKENS_PER_QUOTE),
        "PricingUnit": f"{TOKENS_PER_QUOTE} {meter.unit}",
        "SkuId": f"{day.model}/{kind.replace(' ', '-')}",
        "SkuMeter": meter.name,
        "SkuPriceDetails": json.dumps({"x_Model": day.model}, ensure_ascii=False),
        "SkuPriceId": f"{day.price_id}/{kind.replace(' ', '-')}",
    }


def _money(nano: int) -> str:
    return _plain(Decimal(nano) / NANO)


def _plain(number: Decimal) -> str:
    """A decimal without an exponent and without zeros that say nothing."""
    return format(number.normalize(), "f")


def _moment(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
