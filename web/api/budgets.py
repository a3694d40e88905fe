"""``/api/budgets``: what a project and its keys may be billed in a month."""

from typing import Annotated

from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from runner.domain.ids import API_KEY_PREFIX, BUDGET_PREFIX, encode
from runner.services import budgets
from runner.services.budget_checks import require_unbudgeted
from runner.services.budgets import BudgetRecord
from web.api.amounts import Money, read_money
from web.api.bodies import Body, read_body
from web.api.budget_objects import BudgetList, BudgetObject, DeletedBudget
from web.api.wire import CURRENCY, decimal_text, read_id
from web.auth import current_caller
from web.request_scope import current_session

bp = Blueprint("budgets", __name__)

_ABOUT_LIMIT = "What may be billed in each calendar month, UTC."
_ABOUT_KEY = "The key that it is for; without one, the whole project."


class SetBudget(Body):
    """A budget, new or changed."""

    limit: Annotated[Money, Field(description=_ABOUT_LIMIT)]
    api_key_id: Annotated[str | None, Field(description=_ABOUT_KEY)] = None


@bp.get("/budgets")
def list_budgets() -> ResponseReturnValue:
    """The budgets of the project and of its keys, with what this month has used of them."""
    records = budgets.list_budgets(current_session(), current_caller().project_id)
    answer: BudgetList = {"object": "list", "data": [_object(record) for record in records]}
    return answer


@bp.put("/budgets")
def set_budget() -> ResponseReturnValue:
    """Give the project, or a key of it, a budget; jobs that it stopped go on if they fit.

    A key that has a budget itself may not.
    """
    caller, session = current_caller(), current_session()
    body = read_body(SetBudget)
    require_unbudgeted(session, caller)
    key_id = None
    if body.api_key_id is not None:
        key_id = read_id(API_KEY_PREFIX, body.api_key_id, "key", "api_key_id")
    limit = read_money(body.limit, "limit")
    assert limit is not None
    return _object(budgets.set_budget(session, caller.project_id, key_id, limit))


@bp.delete("/budgets/<budget_id>")
def remove_budget(budget_id: str) -> ResponseReturnValue:
    """Take a budget away: its payer spends without a monthly limit again."""
    caller, session = current_caller(), current_session()
    payer_id = read_id(BUDGET_PREFIX, budget_id, "budget", "budget_id")
    require_unbudgeted(session, caller)
    budgets.remove_budget(session, caller.project_id, payer_id)
    answer: DeletedBudget = {"id": budget_id, "object": "budget", "deleted": True}
    return answer


def _object(record: BudgetRecord) -> BudgetObject:
    limit, key_id = record.limit, record.api_key_id
    return {
        "id": encode(BUDGET_PREFIX, limit.payer_id),
        "object": "budget",
        "api_key_id": None if key_id is None else encode(API_KEY_PREFIX, key_id),
        "name": record.key_name,
        "month": f"{record.month:%Y-%m}",
        "currency": CURRENCY,
        "limit": decimal_text(limit.limit_nano),
        "spent": decimal_text(limit.spent_nano),
        "reserved": decimal_text(limit.reserved_nano),
        "left": decimal_text(max(0, limit.left_nano)),
    }
