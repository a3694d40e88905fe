"""Budgets as the wire has them."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from web.api.objects import Amount, Identified


class BudgetObject(Identified):
    """What may be billed in each month, and what this month has used of it.

    ``reserved`` is what lines in work can still be billed at most.
    """

    object: Literal["budget"]
    api_key_id: Annotated[str, Meta(pattern="^key_[0-9a-z]{26}$")] | None
    name: Annotated[str, Meta(description="Of the key.")] | None
    month: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}$")]
    currency: str
    limit: Amount
    spent: Amount
    reserved: Amount
    left: Amount


class BudgetList(TypedDict):
    """All budgets of a project, its own first."""

    object: Literal["list"]
    data: list[BudgetObject]


class DeletedBudget(TypedDict):
    """What is left of a budget that was taken away."""

    id: Annotated[str, Meta(pattern="^budget_[0-9a-z]{26}$")]
    object: Literal["budget"]
    deleted: Literal[True]
