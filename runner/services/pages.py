"""Cursor pages: the items after a given one, and whether more follow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """One page of a list, in the order asked for."""

    items: Sequence[T]
    has_more: bool


def cut(rows: Sequence[T], limit: int) -> Page[T]:
    """A page from a query that asked for ``limit + 1`` rows."""
    return Page(rows[:limit], len(rows) > limit)
