"""How many requests a key may send in a minute, kept to with one timestamp a key.

The generic cell rate algorithm (ITU-T I.371): a key's clock runs ahead by a minute's n-th part with
each request, and may be a minute ahead at most. So a key that was quiet may send a whole minute's
requests at once, and one that sends evenly is never refused. All web processes share the clock.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from runner.db.models import ApiKey
from runner.domain.errors import InvalidRequest, NotFound
from runner.services.audit import record
from runner.services.keys import Caller

MOST_PER_MINUTE = 1_000_000
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class RequestAllowance:
    """What a key may send, as of one of its requests.

    Attributes:
        limit: requests per minute.
        remaining: of them, how many may be sent at once now.
        reset_seconds: until all of them may.
        wait_seconds: until the next may; above 0 only for a request that is refused.
    """

    limit: int
    remaining: int
    reset_seconds: float
    wait_seconds: float = 0.0

    @property
    def is_refused(self) -> bool:
        """Whether the request came too early."""
        return self.wait_seconds > 0


def set_limit(session: Session, key_id: UUID, per_minute: int | None) -> None:
    """Limit a key's requests from now on; None takes the limit away.

    Raises:
        InvalidRequest: it is no possible limit.
        NotFound: there is no such key.
    """
    if per_minute is not None and not 1 <= per_minute <= MOST_PER_MINUTE:
        raise InvalidRequest(
            f"A key may send 1 to {MOST_PER_MINUTE:,} requests per minute, or without a limit.",
            param="requests_per_minute",
        )
    row = session.get(ApiKey, key_id)
    if row is None:
        raise NotFound("There is no such key; see: tokenmill keys ls.")
    row.requests_per_minute, row.requests_until = per_minute, None
    session.flush()
    detail = {"requests_per_minute": per_minute}
    record(session, "key.limit", str(key_id), project_id=row.project_id, detail=detail)


def take_request(session: Session, caller: Caller) -> RequestAllowance | None:
    """Count a request of a caller; None for a key without a limit, which costs nothing.

    A request that is refused is not counted.
    """
    limit = caller.requests_per_minute
    if limit is None:
        return None
    step = _MINUTE / limit
    begins = func.greatest(func.coalesce(ApiKey.requests_until, func.now()), func.now())
    taken = (
        update(ApiKey)
        .where(ApiKey.id == caller.api_key_id, begins + step <= func.now() + _MINUTE)
        .values(requests_until=begins + step)
        .returning(ApiKey.requests_until, func.now())
        .execution_options(synchronize_session=False)
    )
    found = session.execute(taken).one_or_none()
    if found is not None:
        return _allowance(limit, *found)
    until, now = session.execute(
        select(ApiKey.requests_until, func.now()).where(ApiKey.id == caller.api_key_id)
    ).one()
    return _allowance(limit, until, now, is_refused=True)


def _allowance(
    limit: int, until: datetime | None, now: datetime, is_refused: bool = False
) -> RequestAllowance:
    ahead = max(0.0, (until - now).total_seconds()) if until is not None else 0.0
    step = _MINUTE.total_seconds() / limit
    room = _MINUTE.total_seconds() - ahead
    if is_refused:
        return RequestAllowance(limit, 0, ahead, max(0.001, step - room))
    # A microsecond for the clock's rounding: evenly divided minutes leave whole requests.
    return RequestAllowance(limit, math.floor((room + 1e-5) / step), ahead)
