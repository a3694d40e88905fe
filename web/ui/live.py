"""How often an open page asks again: soon while things move, seldom while they stand still."""

from dataclasses import dataclass

from flask import request

_QUICK_SECONDS, _SLOW_SECONDS = 2, 10


@dataclass(frozen=True, slots=True)
class Poll:
    """When to ask next, and what the page shows until then."""

    seen: str
    wait_seconds: int


def next_poll(now: str) -> Poll:
    """The next question of a page that now shows ``now`` (any text that changes when it should)."""
    if request.args.get("seen") != now:
        return Poll(now, _QUICK_SECONDS)
    waited = request.args.get("wait", _QUICK_SECONDS, type=int)
    return Poll(now, max(_QUICK_SECONDS, min(waited + _QUICK_SECONDS, _SLOW_SECONDS)))
