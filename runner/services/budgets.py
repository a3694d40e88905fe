"""Monthly budgets of projects and of their keys: set, shown, and lifted."""

from dataclasses import dataclass
from datetime import date
from uuid import UUID

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import ApiKey, Budget, Job
from runner.domain.budgets import Limit, LimitKind
from runner.domain.errors import NotFound
from runner.domain.ids import ApiKeyId, ProjectId
from runner.domain.states import JobState, PauseReason
from runner.services.audit import record
from runner.services.pausing import has_room, release
from runner.services.spending import limits_of_project, this_month


@dataclass(frozen=True, slots=True)
class BudgetRecord:
    """A monthly budget as it stands now. ``key_name`` is None for the project's own."""

    limit: Limit
    api_key_id: ApiKeyId | None
    key_name: str | None
    month: date


def list_budgets(session: Session, project_id: ProjectId) -> list[BudgetRecord]:
    """The budgets of a project and of its keys, the project's first."""
    month = session.scalar(select(this_month()))
    assert month is not None
    names = {
        row.id: row.name
        for row in session.execute(
            select(ApiKey.id, ApiKey.name).where(ApiKey.project_id == project_id)
        )
    }
    return [
        BudgetRecord(
            limit=limit,
            api_key_id=ApiKeyId(limit.payer_id) if limit.kind is LimitKind.KEY else None,
            key_name=names.get(limit.payer_id),
            month=month,
        )
        for limit in limits_of_project(session, project_id)
    ]


def set_budget(
    session: Session, project_id: ProjectId, api_key_id: UUID | None, limit_nano: int
) -> BudgetRecord:
    """Give a project, or one of its keys, a budget for each month; jobs it stopped may go on.

    It holds for lines leased from now on: what is leased already runs to its end.
    """
    if api_key_id is not None:
        key = session.get(ApiKey, api_key_id)
        if key is None or key.project_id != project_id:
            raise NotFound("No such key in this project.", param="api_key_id")
    payer_id = api_key_id or project_id
    statement = insert(Budget).values(
        payer_id=payer_id, project_id=project_id, api_key_id=api_key_id, limit_nano=limit_nano
    )
    session.execute(
        statement.on_conflict_do_update(
            index_elements=("payer_id",),
            set_={"limit_nano": limit_nano, "updated_at": func.now()},
        )
    )
    detail = {"limit_nano": limit_nano}
    record(session, "budget.set", str(payer_id), project_id=project_id, detail=detail)
    resume_within_budgets(session, project_id)
    records = list_budgets(session, project_id)
    return next(record for record in records if record.limit.payer_id == payer_id)


def remove_budget(session: Session, project_id: ProjectId, payer_id: UUID) -> None:
    """Have a project, or one of its keys, spend without a monthly limit again."""
    removed = session.scalar(
        delete(Budget)
        .where(Budget.payer_id == payer_id, Budget.project_id == project_id)
        .returning(Budget.payer_id)
    )
    if removed is None:
        raise NotFound("No such budget in this project.", param="budget_id")
    record(session, "budget.remove", str(payer_id), project_id=project_id)
    resume_within_budgets(session, project_id)


def resume_within_budgets(session: Session, project_id: UUID | None = None) -> int:
    """Let jobs go on that a budget stopped, where there is room for their next line again.

    That is so after a limit was raised, when leased lines cost less than they might have, and
    when a month begins. Returns how many.
    """
    query = select(Job).where(
        Job.state == JobState.IN_PROGRESS, Job.pause_reason == PauseReason.BUDGET
    )
    if project_id is not None:
        query = query.where(Job.project_id == project_id)
    resumed = 0
    for job in session.scalars(query.order_by(Job.id).with_for_update(skip_locked=True)):
        if has_room(session, job):
            release(session, job.id)
            record(session, "job.resume", str(job.id), project_id=job.project_id, actor="budget")
            resumed += 1
    return resumed
