"""A prompt with holes: ``{column}`` stands for a row's value, ``{{`` and ``}}`` for the braces."""

import re
from collections.abc import Mapping, Sequence

from runner.domain.errors import InvalidRequest

_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]|[^{}]+")


Piece = tuple[str, bool]
"""Text as it is, or (True) the name of a column."""


class Template:
    """A template that has been read.

    Only whole columns are put in, as they are: no attributes, no formats, and braces inside a
    value are no holes.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces

    def fill(self, row: Mapping[str, object]) -> str:
        """The prompt of one row; an empty cell (None) leaves nothing."""
        return "".join(_text(row[piece]) if is_hole else piece for piece, is_hole in self._pieces)


def read_template(text: str, columns: Sequence[str]) -> Template:
    """The template of a text, against the columns that there are.

    Raises:
        InvalidRequest: a hole that no column fills, or a single brace; the sentence names it.
    """
    return Template([_piece(match, columns) for match in _PIECE.finditer(text)])


def column_template(column: str, columns: Sequence[str]) -> Template:
    """The template that is one column, whatever its name holds."""
    if column not in columns:
        raise _missing(column, columns)
    return Template([(column, True)])


def _piece(match: re.Match[str], columns: Sequence[str]) -> Piece:
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
