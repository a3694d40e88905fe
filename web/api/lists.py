"""Cursor lists: reading what a request wants of one, and the shape of the answer."""

import re

from flask import request

from runner.domain.errors import InvalidRequest
from web.api.objects import Item, ListObject

_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def read_limit(default: int, maximum: int) -> int:
    """The ``limit`` of the query string."""
    text = request.args.get("limit")
    if text is None:
        return default
    if not _INTEGER.fullmatch(text):
        raise InvalidRequest("limit must be an integer.", code="invalid_type", param="limit")
    limit = int(text)
    if limit > maximum:
        raise InvalidRequest(
            f"limit must be at most {maximum}.", code="integer_above_max_value", param="limit"
        )
    if limit < 1:
        raise InvalidRequest(
            "limit must be at least 1.", code="integer_below_min_value", param="limit"
        )
    return limit


def read_ascending() -> bool:
    """Whether the ``order`` of the query string is oldest first."""
    order = request.args.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("order must be 'asc' or 'desc'.", code="invalid_value", param="order")
    return order == "asc"


def list_object(items: list[Item], has_more: bool) -> ListObject[Item]:
    """A page; its last id is the cursor of the next."""
    return {
        "object": "list",
        "data": items,
        "first_id": items[0]["id"] if items else None,
        "last_id": items[-1]["id"] if items else None,
        "has_more": has_more,
    }
