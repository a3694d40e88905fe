"""JSON Schemas on their way to a grammar: how their JSON is spaced, and how deep they may go."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from engine.errors import InvalidGrammar

MAX_LEVELS = 4000
"""Levels that a compiler may have to descend into; `STACK_BYTES` has room for several times it."""
STACK_BYTES = 128 << 20
"""Stack of the thread that compiles. llguidance recurses per level and would end the process
where the stack ends; pages that are not touched cost nothing."""

# One space at most, and only after a separator: with free whitespace a small model may write
# nothing else until its tokens are used up. `oneOf` stays exact and no keyword is ignored.
_SPACING = {
    "whitespace_flexible": False,
    "item_separator": ", ?",
    "key_separator": ": ?",
    "lenient": False,
    "coerce_one_of": False,
}


def grammar_schema(schema: object) -> dict[str, Any]:
    """A schema, as decoded from JSON, ready for the compiler; options of its own are replaced.

    Raises:
        InvalidGrammar: it is no schema, or too deep.
    """
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise InvalidGrammar("it must be a JSON object")
    levels = count_levels(schema)
    if levels > MAX_LEVELS:
        raise InvalidGrammar(
            f"it is nested {levels:,} levels deep with its $refs, of at most {MAX_LEVELS:,}"
        )
    return {**schema, "x-guidance": _SPACING}


def count_levels(schema: dict[str, Any]) -> int:
    """An upper bound of how deep a compiler can descend that follows each $ref once on its way."""
    depths = _depths(schema)
    levels = depths[id(schema)]
    for pointer in _references(schema):
        target = _resolve(schema, pointer)
        levels += depths[id(schema if target is None else target)]
    return levels


def _depths(root: object) -> dict[int, int]:
    """How many levels of objects and lists lie in each object and list, itself among them."""
    order = [root]
    for value in order:  # grows while it is walked
        order += [child for child in _children(value) if isinstance(child, dict | list)]
    depths: dict[int, int] = {}
    for value in reversed(order):
        depths[id(value)] = 1 + max(
            (depths.get(id(child), 0) for child in _children(value)), default=0
        )
    return depths


def _references(root: object) -> set[str]:
    order, found = [root], set()
    for value in order:
        order += [child for child in _children(value) if isinstance(child, dict | list)]
        reference = value.get("$ref") if isinstance(value, dict) else None
        if isinstance(reference, str):
            found.add(reference)
    return found


def _children(value: object) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _resolve(root: dict[str, Any], reference: str) -> dict[str, Any] | list[Any] | None:
    """What a JSON pointer (RFC 6901) names in its own document; None for any other reference."""
    target: Any = root
    for part in unquote(reference).removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = target.get(name)
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return None
    return target if isinstance(target, dict | list) else None
