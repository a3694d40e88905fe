"""What payers have spent this month, and what limits say of it.

Spent is noted with the results, reserved stands on leased shards; both are sums over rows that
only one worker writes. One statement reads them together, so that money on its way from one to the
other is counted once.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import date
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Date,
    Select,
    Uuid,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    union_all,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session
from sqlalchemy.sql.elements import SQLCoreOperations

from runner.db.models import Budget, Job, Shard, Spending
from runner.domain.budgets import Limit, LimitKind
from runner.domain.ids import WorkerId
from runner.domain.leases import FinishedItem
from runner.domain.states import JobState, ShardState
from runner.services.accounting import Charge


def this_month() -> ColumnElement[date]:
    """The first day of the present calendar month, in UTC."""
    return cast(func.date_trunc("month", func.timezone("UTC", func.now())), Date)


def note_spending(
    session: Session, worker_id: WorkerId, charges: Iterable[tuple[FinishedItem, Charge]]
) -> None:
    """Add what accepted items billed, in the transaction that accepts them."""
    sums: Counter[tuple[UUID, UUID]] = Counter()
    for item, charge in charges:
        sums[item.lease.project_id, worker_id] += charge.billed_nano
        if item.lease.api_key_id is not None:
            sums[item.lease.api_key_id, worker_id] += charge.billed_nano
    _add(session, sums)


def add_spending(session: Session, job: Job, by_worker: Mapping[UUID, int]) -> None:
    """Add what lines of a job billed that took the answers of some workers' lines."""
    payers = [payer for payer in (job.project_id, job.api_key_id) if payer is not None]
    _add(session, {(payer, one): nano for payer in payers for one, nano in by_worker.items()})


def _add(session: Session, sums: Mapping[tuple[UUID, UUID], int]) -> None:
    """Add to the rows of payers and workers, in one order for all who do."""
    rows = [
        {"payer_id": payer, "month": this_month(), "worker_id": worker_id, "billed_nano": nano}
        for (payer, worker_id), nano in sorted(sums.items())
        if nano
    ]
    if not rows:
        return
    statement = insert(Spending).values(rows)
    added = Spending.billed_nano + statement.excluded.billed_nano
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("payer_id", "month", "worker_id"), set_={"billed_nano": added}
        )
    )


def limits_of_job(session: Session, job: Job) -> list[Limit]:
    """The limits that every line of a job counts against; none for most jobs."""
    payers = [payer for payer in (job.project_id, job.api_key_id) if payer is not None]
    parts = [_budgets().where(Budget.payer_id.in_(payers))]
    if job.max_cost_nano is not None:
        parts.append(_of_the_job(job, job.max_cost_nano))
    return _read(session, parts)


def limits_of_payers(session: Session, project_id: UUID, api_key_id: UUID | None) -> list[Limit]:
    """The monthly limits that a new job of a project and key will count against."""
    payers = [payer for payer in (project_id, api_key_id) if payer is not None]
    return _read(session, [_budgets().where(Budget.payer_id.in_(payers))])


def limits_of_project(session: Session, project_id: UUID) -> list[Limit]:
    """The monthly limits of a project and of its keys, the project's first."""
    limits = _read(session, [_budgets().where(Budget.project_id == project_id)])
    return sorted(limits, key=lambda limit: (limit.kind is LimitKind.KEY, limit.payer_id))


def monthly_limits(session: Session) -> list[Limit]:
    """Every monthly limit there is."""
    return _read(session, [_budgets()])


def limits_of_running_jobs(session: Session) -> list[Limit]:
    """The own limits of jobs that have not ended."""
    query = (
        select(
            literal(LimitKind.JOB.value),
            Job.id,
            Job.project_id,
            func.coalesce(Job.max_cost_nano, 0),
            _sum(Shard.billed_nano),
            _sum(Shard.reserved_nano),
        )
        .join(Shard, Shard.job_id == Job.id)
        .where(Job.state == JobState.IN_PROGRESS, Job.max_cost_nano.is_not(None))
        .group_by(Job.id)
    )
    return _read(session, [query])


def _read(session: Session, parts: list[Select[str, UUID, UUID, int, int, int]]) -> list[Limit]:
    return [
        Limit(LimitKind(kind), payer_id, project_id, limit, spent, reserved)
        for kind, payer_id, project_id, limit, spent, reserved in session.execute(union_all(*parts))
    ]


def _budgets() -> Select[str, UUID, UUID, int, int, int]:
    spent = (
        select(_sum(Spending.billed_nano))
        .where(Spending.payer_id == Budget.payer_id, Spending.month == this_month())
        .scalar_subquery()
    )
    reserved = (
        select(_sum(Shard.reserved_nano))
        .join(Job, Job.id == Shard.job_id)
        .where(
            Shard.state == ShardState.LEASED,
            Job.project_id == Budget.project_id,
            or_(Budget.api_key_id.is_(None), Job.api_key_id == Budget.api_key_id),
        )
        .correlate(Budget)
        .scalar_subquery()
    )
    kind = case((Budget.api_key_id.is_(None), LimitKind.PROJECT.value), else_=LimitKind.KEY.value)
    return select(kind, Budget.payer_id, Budget.project_id, Budget.limit_nano, spent, reserved)


def _of_the_job(job: Job, limit_nano: int) -> Select[str, UUID, UUID, int, int, int]:
    return select(
        literal(LimitKind.JOB.value),
        literal(job.id, Uuid),
        literal(job.project_id, Uuid),
        literal(limit_nano, BigInteger),
        _sum(Shard.billed_nano),
        _sum(Shard.reserved_nano),
    ).where(Shard.job_id == job.id)


def _sum(column: SQLCoreOperations[int]) -> ColumnElement[int]:
    return cast(func.coalesce(func.sum(column), 0), BigInteger)
