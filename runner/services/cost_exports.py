"""Costs as files: CSV and Parquet of any groups, and charges by FOCUS 1.2."""

import csv
import io
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

from sqlalchemy.orm import Session

from runner.domain.errors import InvalidRequest
from runner.domain.focus import COLUMNS, LINES, DayOfJob, Meter, charges_of
from runner.domain.ids import JOB_PREFIX, PROJECT_PREFIX, encode
from runner.domain.pricing import NANO
from runner.services.costs import Charge, Scope, Spent, charges

FORMATS = ("csv", "parquet", "focus")
MIME_TYPES = {
    "csv": "text/csv",
    "parquet": "application/vnd.apache.parquet",
    "focus": "text/csv",
}
SUFFIXES = {"csv": "csv", "parquet": "parquet", "focus": "focus.csv"}
_COUNTS = (
    "lines",
    "attempts",
    "input_tokens",
    "cached_input_tokens",
    "output_tokens",
    "device_us",
    "reused_lines",
)
_MONEY = ("billed", "run_cost", "margin", "saved")


def focus_csv(session: Session, scope: Scope) -> bytes:
    """The charges of a scope as FOCUS 1.2 wants them, a header first."""
    rows = (row for charge in charges(session, scope) for row in _focus_rows(charge))
    return _csv(COLUMNS, ([row[name] for name in COLUMNS] for row in rows))


def groups_csv(groups: Sequence[Spent], by: Sequence[str]) -> bytes:
    """Groups as CSV: dimensions, counts, measured joules, and money exact to nine places."""
    return _csv(_header(by), (_row(group) for group in groups))


def groups_parquet(groups: Sequence[Spent], by: Sequence[str]) -> bytes:
    """The same as Parquet: texts, 64-bit integers and decimals.

    Raises:
        InvalidRequest: pyarrow is not installed here.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ModuleNotFoundError:
        raise InvalidRequest(
            "Parquet needs pyarrow: pip install 'tokenmill[parquet]'.", code="pyarrow_missing"
        ) from None
    kinds = (
        [pa.string()] * len(by)
        + [pa.int64()] * len(_COUNTS)
        + [pa.float64()]
        + [pa.decimal128(38, 9)] * len(_MONEY)
    )
    schema = pa.schema(list(zip(_header(by), kinds, strict=True)))
    columns = list(zip(*map(_row, groups), strict=True)) or [()] * len(schema)
    table = pa.table(
        [pa.array(column, kind) for column, kind in zip(columns, kinds, strict=True)], schema
    )
    target = io.BytesIO()
    pq.write_table(table, target)
    return target.getvalue()


def _header(by: Sequence[str]) -> list[str]:
    return [*by, *_COUNTS, "joules", *_MONEY]


def _row(group: Spent) -> list[Any]:
    return [
        *group.group,
        group.lines,
        group.attempts,
        group.prompt_tokens,
        group.cached_tokens,
        group.output_tokens,
        group.device_us,
        group.reused_lines,
        group.energy_uj / 1e6 if group.metered_lines else None,
        *map(_money, (group.billed_nano, group.run_cost_nano, group.margin_nano)),
        _money(group.saved_nano),
    ]


def _money(nano: int) -> Decimal:
    return (Decimal(nano) / NANO).quantize(Decimal("1.000000000"))


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    target = io.StringIO()
    writer = csv.writer(target, lineterminator="\r\n")
    writer.writerow(header)
    for row in rows:
        writer.writerow([format(cell, "f") if isinstance(cell, Decimal) else cell for cell in row])
    return target.getvalue().encode()


def _focus_rows(charge: Charge) -> Iterable[dict[str, str | None]]:
    spent = charge.spent
    tags = dict.fromkeys(charge.tags, "true")
    known = {"tokenmill:key": charge.api_key, "tokenmill:schedule": charge.schedule}
    day = DayOfJob(
        day=charge.day,
        project_id=encode(PROJECT_PREFIX, charge.project_id),
        project=charge.project,
        job_id=encode(JOB_PREFIX, charge.job_id),
        model=charge.model,
        price_id=str(charge.price_id),
        currency=charge.currency,
        tags={**{name: value for name, value in known.items() if value}, **tags},
        billed_nano=spent.billed_nano,
        run_cost_nano=spent.run_cost_nano,
        lines=spent.lines,
    )
    computed = spent.prompt_tokens - spent.cached_tokens
    return charges_of(
        day,
        (
            Meter("Input tokens", computed, charge.input_nano_per_million),
            Meter("Cached input tokens", spent.cached_tokens, charge.cached_nano_per_million),
            Meter("Output tokens", spent.output_tokens, charge.output_nano_per_million),
            Meter("Reused lines", spent.reused_lines, charge.reused_nano_per_million, LINES),
        ),
    )
