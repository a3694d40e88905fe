"""The account of one job: sums and exact percentiles over its ledger, frozen when it ends."""

from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import ColumnElement, SQLColumnExpression, case, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import JobAccount, JobWaste, Usage, Worker
from runner.domain.lanes import Lane
from runner.domain.latency import NO_PERCENTILES, SHARES, Measure, Percentiles


@dataclass(frozen=True, slots=True)
class LaneUse:
    """How many of a job's billed lines ran in a lane."""

    lane: Lane
    lines: int


@dataclass(frozen=True, slots=True)
class Account:
    """Sums over the ledger rows of one job. Times are in microseconds.

    ``attempts`` counts the leases that its lines took: with no trouble, as many as ``lines``.
    ``energy_uj`` (microjoules) covers the ``metered_lines``, whose worker could read a meter.
    ``reused_lines`` took the answers of others, which saved so much against computing them.
    ``truncated_lines`` were answered from a shortened prompt, which lost ``truncated_tokens``.
    """

    lines: int
    attempts: int
    device_us: int
    preemptions: int
    recomputed_tokens: int
    truncated_lines: int
    truncated_tokens: int
    energy_uj: int
    metered_lines: int
    reused_lines: int
    saved_nano: int
    queue: Percentiles
    first_token: Percentiles
    per_token: Percentiles
    total: Percentiles
    lanes: tuple[LaneUse, ...]


@dataclass(frozen=True, slots=True)
class Waste:
    """What workers spent on a job for nothing: attempts, and microseconds of device time."""

    attempts: int
    device_us: int


def _sum(
    column: SQLColumnExpression[int] | SQLColumnExpression[int | None],
) -> ColumnElement[int]:
    return func.coalesce(func.sum(column), 0)


SUMS: dict[str, ColumnElement[int]] = {
    "lines": func.count(),
    "attempts": _sum(Usage.attempt),
    "prompt_tokens": _sum(Usage.prompt_tokens),
    "cached_tokens": _sum(Usage.cached_tokens),
    "output_tokens": _sum(Usage.output_tokens),
    "device_us": _sum(Usage.device_us),
    "preemptions": _sum(Usage.preemptions),
    "recomputed_tokens": _sum(Usage.recomputed_tokens),
    "truncated_lines": func.count().filter(Usage.truncated_tokens > 0),
    "truncated_tokens": _sum(Usage.truncated_tokens),
    "energy_uj": _sum(Usage.energy_uj),
    "metered_lines": func.count(Usage.energy_uj),
    "reused_lines": func.count().filter(Usage.reused),
    "saved_nano": _sum(Usage.saved_nano),
    "billed_nano": _sum(Usage.billed_nano),
    "run_cost_nano": _sum(Usage.run_cost_nano),
}
"""Every sum that is kept of the ledger, by the name of its column wherever it is kept."""

LATENCIES: dict[Measure, ColumnElement[int]] = {
    # A line that took another's answer took no time: it is left out.
    Measure.QUEUE: case((~Usage.reused, Usage.queue_us)),
    # An embedding has no first token, and a single token no time between two.
    Measure.FIRST_TOKEN: func.nullif(Usage.first_token_us, 0),
    Measure.PER_TOKEN: case(
        (~Usage.reused & (Usage.output_tokens > 1), Usage.decode_us // (Usage.output_tokens - 1))
    ),
    Measure.TOTAL: case((~Usage.reused, Usage.total_us)),
}

_ACCOUNT_SUMS = (
    "lines",
    "attempts",
    "device_us",
    "preemptions",
    "recomputed_tokens",
    "truncated_lines",
    "truncated_tokens",
    "energy_uj",
    "metered_lines",
    "reused_lines",
    "saved_nano",
)
_LATENCY_COLUMNS = {
    "queue_us": Measure.QUEUE,
    "first_token_us": Measure.FIRST_TOKEN,
    "per_token_us": Measure.PER_TOKEN,
    "total_us": Measure.TOTAL,
}


def job_account(session: Session, job_id: UUID) -> Account:
    """The account of a job: the frozen one once it has ended, else that of its lines so far."""
    row = session.get(JobAccount, job_id)
    return _read(session, job_id) if row is None else _account_of(row)


def freeze_account(session: Session, job_id: UUID) -> None:
    """Keep the account of a job that has ended. Repeating it is harmless."""
    account = _read(session, job_id)
    values = {name: getattr(account, name) for name in _ACCOUNT_SUMS}
    times = (account.queue, account.first_token, account.per_token, account.total)
    for name, percentiles in zip(_LATENCY_COLUMNS, times, strict=True):
        values[name] = _stored(percentiles)
    values["lanes"] = {
        "uses": [
            {"name": use.lane.name, "reason": use.lane.reason, "lines": use.lines}
            for use in account.lanes
        ]
    }
    statement = insert(JobAccount).values(job_id=job_id, **values)
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("job_id",), set_={name: statement.excluded[name] for name in values}
        )
    )


def job_waste(session: Session, job_id: UUID) -> Waste:
    """What was spent on a job for nothing, as its workers have told so far."""
    query = select(_sum(JobWaste.attempts), _sum(JobWaste.device_us))
    attempts, device_us = session.execute(query.where(JobWaste.job_id == job_id)).one()
    return Waste(int(attempts), int(device_us))


def _read(session: Session, job_id: UUID) -> Account:
    columns = [SUMS[name].label(name) for name in _ACCOUNT_SUMS]
    quantiles = [
        func.percentile_disc(list(SHARES)).within_group(LATENCIES[measure]).label(name)
        for name, measure in _LATENCY_COLUMNS.items()
    ]
    row = (
        session.execute(select(*columns, *quantiles).where(Usage.job_id == job_id)).mappings().one()
    )
    return Account(
        **{name: int(row[name]) for name in _ACCOUNT_SUMS},
        queue=_percentiles(row["queue_us"]),
        first_token=_percentiles(row["first_token_us"]),
        per_token=_percentiles(row["per_token_us"]),
        total=_percentiles(row["total_us"]),
        lanes=lane_uses(session, job_id),
    )


def _account_of(row: JobAccount) -> Account:
    return Account(
        **{name: getattr(row, name) for name in _ACCOUNT_SUMS},
        queue=_percentiles(row.queue_us),
        first_token=_percentiles(row.first_token_us),
        per_token=_percentiles(row.per_token_us),
        total=_percentiles(row.total_us),
        lanes=tuple(
            LaneUse(Lane(use["name"], use["reason"]), use["lines"]) for use in row.lanes["uses"]
        ),
    )


def lane_uses(session: Session, job_id: UUID) -> tuple[LaneUse, ...]:
    """The lanes of the workers that answered a job's billed lines, the busiest first."""
    lines = func.count().label("lines")
    rows = session.execute(
        select(Worker.lane, Worker.lane_reason, lines)
        .join(Usage, Usage.worker_id == Worker.id)
        .where(Usage.job_id == job_id, ~Usage.reused)
        .group_by(Worker.lane, Worker.lane_reason)
        .order_by(lines.desc(), Worker.lane, Worker.lane_reason)
    )
    return tuple(LaneUse(Lane(name, reason), count) for name, reason, count in rows)


def _percentiles(values: list[int] | None) -> Percentiles:
    return NO_PERCENTILES if values is None else Percentiles(*values)


def _stored(percentiles: Percentiles) -> list[int] | None:
    p50, p90, p99 = percentiles.p50, percentiles.p90, percentiles.p99
    return None if p50 is None or p90 is None or p99 is None else [p50, p90, p99]
