"""What is refused because of money: jobs that cannot fit, and changes by those whom it limits."""

from uuid import UUID

from sqlalchemy.orm import Session

from runner.db.models import Budget
from runner.domain.budgets import EXCEEDED, Limit, LimitKind, amount, tightest
from runner.domain.errors import Forbidden, InvalidRequest
from runner.domain.estimate import Basis, Estimate
from runner.services.estimates import Order, quick
from runner.services.keys import Caller
from runner.services.spending import limits_of_payers


def refuse_what_cannot_fit(
    session: Session, caller: Caller, order: Order, max_cost_nano: int | None
) -> None:
    """Refuse a new job whose likely cost some limit cannot bear now.

    A glance at its file tells the cost. Without earlier jobs to learn from, only the least that
    it can cost speaks against it: what lines may answer at most says nothing of what they will.

    Raises:
        InvalidRequest: with the limit and all figures.
    """
    limits = limits_of_payers(session, caller.project_id, caller.api_key_id)
    if max_cost_nano is not None:
        own = Limit(LimitKind.JOB, UUID(int=0), caller.project_id, max_cost_nano, 0, 0)
        limits.append(own)
    if not limits:
        return
    limit, estimate = tightest(limits), quick(session, order)
    needs = 1 if estimate is None else max(1, _expected_nano(estimate))
    if needs > limit.left_nano:
        expected = f"The job will cost about {amount(needs)}" if estimate else "A job costs money"
        raise InvalidRequest(
            f"{expected}, but {limit.told()}. Raise the limit, send fewer lines, or send"
            ' on_budget "pause" to have the job stop where the money ends.',
            code=EXCEEDED,
            param="max_cost" if limit.kind is LimitKind.JOB else None,
        )


def may_change_budgets(session: Session, caller: Caller) -> bool:
    """Whether the caller's key has no budget of its own, which it could else lift."""
    return caller.api_key_id is None or session.get(Budget, caller.api_key_id) is None


def require_unbudgeted(session: Session, caller: Caller) -> None:
    """A key that has a budget of its own must not lift it, nor that of its project.

    Raises:
        Forbidden: the caller's key has one.
    """
    if not may_change_budgets(session, caller):
        raise Forbidden(
            "This key has a budget, so it cannot change budgets; use a key without one, or:"
            " tokenmill budgets set.",
            code="budget_locked",
        )


def _expected_nano(estimate: Estimate) -> int:
    """The likely cost of a job if that is known, else the least."""
    is_known = estimate.basis is not Basis.MAX_TOKENS
    return estimate.billed.likely if is_known else estimate.billed.low
