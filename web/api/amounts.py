"""Amounts of money as bodies carry them: a decimal number, as text to be exact, or as a number."""

from decimal import Decimal
from typing import Annotated

from pydantic import Field, JsonValue

from runner.domain.budgets import read_amount

_TEXT: dict[str, JsonValue] = {"pattern": r"^[0-9]{1,9}(\.[0-9]{1,9})?$"}
_NUMBER: dict[str, JsonValue] = {"minimum": 0, "maximum": 999_999_999}

Money = (
    Annotated[str, Field(json_schema_extra=_TEXT)]
    | Annotated[int, Field(json_schema_extra=_NUMBER)]
    | Annotated[float, Field(json_schema_extra=_NUMBER)]
)


def read_money(value: str | float | None, param: str) -> int | None:
    """Nano-units of an amount; None where there is none.

    A number with a fraction is binary, so it is rounded to nine places; a text is exact or refused.

    Raises:
        InvalidRequest: it is no amount.
    """
    if value is None:
        return None
    return read_amount(value if isinstance(value, str) else f"{Decimal(repr(value)):.9f}", param)
