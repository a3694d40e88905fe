"""Limits of money and what is left of them. Amounts are integer nano-units."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from runner.domain.errors import InvalidRequest
from runner.domain.outlines import FRAME_TOKENS, Outline
from runner.domain.pricing import NANO, TOKENS_PER_QUOTE, Price

EXCEEDED = "budget_exceeded"
ON_BUDGET = ("refuse", "pause")
ALERTS = (50, 80, 100)  # percent of a limit
_AMOUNT = re.compile(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?")
_PLACES = 9


class LimitKind(StrEnum):
    """Whose limit it is."""

    JOB = "job"
    KEY = "key"
    PROJECT = "project"


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit at one moment: what was billed of it, and what leased lines may still be billed."""

    kind: LimitKind
    payer_id: UUID
    project_id: UUID
    limit_nano: int
    spent_nano: int
    reserved_nano: int

    @property
    def left_nano(self) -> int:
        """What may still be reserved; below 0 where a limit was lowered."""
        return self.limit_nano - self.spent_nano - self.reserved_nano

    @property
    def spent_percent(self) -> int:
        """How much of it is spent, rounded down; a limit of nothing is used up."""
        return self.spent_nano * 100 // self.limit_nano if self.limit_nano else 100

    def told(self) -> str:
        """The limit in words, with its figures."""
        whose = {
            LimitKind.JOB: "max_cost of the job",
            LimitKind.KEY: "monthly budget of its API key",
            LimitKind.PROJECT: "monthly budget of its project",
        }[self.kind]
        held = (
            f", {amount(self.reserved_nano)} held for lines in work" if self.reserved_nano else ""
        )
        return (
            f"the {whose} is {amount(self.limit_nano)}; "
            f"{amount(self.spent_nano)} spent{held}, {amount(max(0, self.left_nano))} left"
        )


def tightest(limits: Iterable[Limit]) -> Limit:
    """The limit that has the least left (of one at least)."""
    return min(limits, key=lambda limit: limit.left_nano)


def most_billed_nano(size: Outline, price: Price, context: int) -> int:
    """What a line can be billed at most, before anybody has counted its tokens.

    No prompt has more tokens than bytes but for its template's frame, and no choice more than the
    model holds.
    """
    dearest = max(price.input_nano_per_million, price.cached_nano_per_million)
    room = size.choices * context
    output = room if size.output is None else min(size.output, room)
    total = (size.prompt_bytes + FRAME_TOKENS) * dearest + output * price.output_nano_per_million
    return -(-total // TOKENS_PER_QUOTE)


def affordable(bounds: Mapping[int, int], left_nano: int) -> Sequence[int]:
    """The lines, by ``idx`` and in order, that money does for; dearer ones are passed over."""
    chosen = []
    for idx, bound in bounds.items():
        if bound <= left_nano:
            left_nano -= bound
            chosen.append(idx)
    return chosen


def amount(nano: int) -> str:
    """An amount for a sentence: exact, without zeros that say nothing."""
    whole, rest = divmod(nano, NANO)
    digits = f"{rest:0{_PLACES}d}".rstrip("0").ljust(2, "0")
    return f"{whole:,}.{digits}"


def read_amount(text: str, param: str) -> int:
    """Nano-units of a decimal number of whole units, such as 2 or 0.25.

    Raises:
        InvalidRequest: it is no such number, or has more than nine digits on a side.
    """
    found = _AMOUNT.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{param} must be an amount such as 2.50, with at most nine digits before the point"
            " and nine after it.",
            param=param,
        )
    whole, rest = found.groups("")
    return int(whole) * NANO + int(rest.ljust(_PLACES, "0"))
