"""``/api/retention``: how long lines are kept. Only the command line changes it: it is for all."""

from flask import Blueprint
from flask.typing import ResponseReturnValue

from runner.services.retention_rule import read_rule
from web.api.report_objects import RetentionObject
from web.api.wire import seconds_or_none
from web.request_scope import current_session

bp = Blueprint("retention", __name__)


@bp.get("/retention")
def show_retention() -> ResponseReturnValue:
    """The rule that removes the lines of batches some time after their end."""
    rule = read_rule(current_session())
    answer: RetentionObject = {
        "object": "retention",
        "days": rule.days,
        "applied_at": seconds_or_none(rule.applied_at),
    }
    return answer
