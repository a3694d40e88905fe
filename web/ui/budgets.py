"""The page of budgets: what this month has used of each, and a form to set them."""

from flask import Blueprint, redirect, render_template, request, url_for
from flask.typing import ResponseReturnValue

from runner.domain.budgets import read_amount
from runner.domain.errors import NotFound
from runner.domain.ids import API_KEY_PREFIX, BUDGET_PREFIX, decode, encode
from runner.services import budgets, keys
from runner.services.budget_checks import may_change_budgets, require_unbudgeted
from web.request_scope import current_session
from web.ui.guard import current_caller, require_session, require_token

bp = Blueprint("budgets", __name__)
bp.before_request(require_session)


@bp.get("/budgets")
def show_budgets() -> ResponseReturnValue:
    """Each budget as a bar of what is spent, reserved and left."""
    session, caller = current_session(), current_caller()
    records = budgets.list_budgets(session, caller.project_id)
    live = keys.live_keys(session, caller.project_id)
    return render_template(
        "budgets.html",
        budgets=[(encode(BUDGET_PREFIX, record.limit.payer_id), record) for record in records],
        keys=[(encode(API_KEY_PREFIX, key_id), name) for key_id, name in live],
        may_change=may_change_budgets(session, caller),
    )


@bp.post("/budgets")
def set_budget() -> ResponseReturnValue:
    """Set the budget of the project, or of one of its keys."""
    require_token()
    session, caller = current_session(), current_caller()
    require_unbudgeted(session, caller)
    limit = read_amount(request.form.get("limit", "").strip(), "limit")
    payer = request.form.get("payer", "")
    key_id = decode(API_KEY_PREFIX, payer) if payer else None
    if payer and key_id is None:
        raise NotFound("No such key in this project.", param="payer")
    budgets.set_budget(session, caller.project_id, key_id, limit)
    return redirect(url_for("ui.budgets.show_budgets"), 303)


@bp.post("/budgets/<budget_id>/remove")
def remove_budget(budget_id: str) -> ResponseReturnValue:
    """Take a budget away."""
    require_token()
    session, caller = current_session(), current_caller()
    payer_id = decode(BUDGET_PREFIX, budget_id)
    if payer_id is None:
        raise NotFound("No such budget in this project.", param="budget_id")
    require_unbudgeted(session, caller)
    budgets.remove_budget(session, caller.project_id, payer_id)
    return redirect(url_for("ui.budgets.show_budgets"), 303)
