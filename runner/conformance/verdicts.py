"""What came of a trap."""

from dataclasses import dataclass
from enum import StrEnum

_SHOWN = 300  # letters of what came


class Verdict(StrEnum):
    """Whether the server does what the contract says. Only ``PASSED`` counts."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the table."""

    number: int
    what: str
    verdict: Verdict
    said: str
    seconds: float


class Fault(Exception):
    """The server did something else than the contract says."""

    def __init__(self, expected: str, came: object) -> None:
        shown = str(came)
        if len(shown) > _SHOWN:
            shown = f"{shown[:_SHOWN]} …"
        super().__init__(f"expected {expected}; came {shown}")


class NotChecked(Exception):
    """The server or the caller gives no way to see it; the sentence says what would."""


def expect(is_true: bool, expected: str, came: object) -> None:
    """Raise a ``Fault`` unless it is true."""
    if not is_true:
        raise Fault(expected, came)
