"""A prompt with holes: ``{column}`` stands for a row's value, ``{{`` and ``}}`` for the braces."""

import re
from collections.abc import Mapping, Sequence

from runner.domain.errors import InvalidRequest

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


class Template:
    """A template read once, against the columns that there are.

    Only whole columns are put in, as they are: no attributes, no formats, and braces inside a
    value are no holes.
    """

    def __init__(self, text: str, columns: Sequence[str]) -> None:
        """Raises InvalidRequest for a hole that no column fills, naming it."""
        self._pieces: list[tuple[str, bool]] = []  # text, or the name of a column
        for match in _PIECE.finditer(text):
            self._pieces.append(_piece(match, columns))

    def fill(self, row: Mapping[str, object]) -> str:
        """The prompt of one row; an empty cell (None) leaves nothing."""
        return "".join(_text(row[piece]) if is_hole else piece for piece, is_hole in self._pieces)


def column_template(column: str, columns: Sequence[str]) -> Template:
    """The template that is one column, whatever its name holds."""
    if column not in columns:
        raise _missing(column, columns)
    template = Template("", columns)
    template._pieces = [(column, True)]
    return template


def _piece(match: re.Match[str], columns: Sequence[str]) -> tuple[str, bool]:
    whole = match.group()
    if whole in ("{{", "}}"):
        return whole[0], False
    if whole in ("{", "}"):
        raise InvalidRequest(
            f"The template has a single {whole} at {match.start() + 1}; write {whole * 2} for the "
            "letter, {column} for a column."
        )
    if match.group(1) is None:
        return whole, False
    column = match.group(1) if match.group(1) in columns else match.group(1).strip()
    if column not in columns:
        raise _missing(column, columns)
    return column, True


def _missing(column: str, columns: Sequence[str]) -> InvalidRequest:
    return InvalidRequest(
        f"The input has no column {column!r}; it has: {', '.join(columns)}.",
        code="missing_column",
        param=column,
    )


def _text(value: object) -> str:
    return "" if value is None else str(value)
