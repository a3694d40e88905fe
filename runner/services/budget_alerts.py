"""Telling once that half of a limit is spent, that most of it is, and that it is used up."""

from sqlalchemy import Date, cast, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from runner.db.models import BudgetAlert, Job
from runner.domain.budgets import ALERTS, Limit, LimitKind
from runner.services.events import announce
from runner.services.spending import limits_of_running_jobs, monthly_limits, this_month

USED_UP = ALERTS[-1]


def tell_of_spending(session: Session) -> None:
    """Announce each mark that the spending of a budget or of a running job has come to."""
    for limit in (*monthly_limits(session), *limits_of_running_jobs(session)):
        for percent in ALERTS:
            if limit.spent_percent >= percent:
                tell(session, limit, percent)


def tell(session: Session, limit: Limit, percent: int) -> None:
    """Announce one mark, if nobody did for this limit; in its month, if it is a monthly one."""
    month = select(this_month()).scalar_subquery()
    if limit.kind is LimitKind.JOB:
        created = func.timezone("UTC", Job.created_at)
        of_creation = cast(func.date_trunc("month", created), Date)
        month = select(of_creation).where(Job.id == limit.payer_id).scalar_subquery()
    statement = insert(BudgetAlert).values(
        payer_id=limit.payer_id, month=month, limit_nano=limit.limit_nano, percent=percent
    )
    is_news = statement.on_conflict_do_nothing().returning(BudgetAlert.percent)
    if session.scalar(is_news) is not None:
        payload = {
            "limit": limit.kind.value,
            f"{limit.kind}_id": str(limit.payer_id),
            "percent": percent,
            "limit_nano": limit.limit_nano,
            "spent_nano": limit.spent_nano,
        }
        announce(session, limit.project_id, "budget.alert", payload)
