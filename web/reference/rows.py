"""The document as rows of tables: what the page shows of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]

_METHODS = ("get", "post", "put", "patch", "delete")
_BOUNDS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
    "default": "{} unless given",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One field. ``links`` are the names of objects that its type mentions."""

    name: str
    kind: str
    required: bool
    text: str
    place: str = ""
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """One operation, as it is shown."""

    name: str
    method: str
    path: str
    summary: str
    description: str
    open: bool
    rows: tuple[Row, ...]
    takes: str
    answers: tuple[Row, ...]


def chapters(document: Schema) -> dict[str, list[Call]]:
    """The operations of a document by their tags."""
    found: dict[str, list[Call]] = {}
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                call = _call(method, path, methods[method], document["components"]["schemas"])
                found.setdefault(methods[method]["tags"][0], []).append(call)
    return found


def objects(document: Schema) -> dict[str, tuple[str, list[Row]]]:
    """The named schemas of a document: what they are, and their fields."""
    return {
        name: (schema.get("description", ""), list(_fields(schema)))
        for name, schema in sorted(document["components"]["schemas"].items())
    }


def _call(method: str, path: str, operation: Schema, schemas: Schema) -> Call:
    rows = [_row(each["name"], each, each["in"]) for each in operation["parameters"]]
    takes = ""
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        body = content["schema"]
        takes = media
        rows += _fields(schemas[_kind(body)] if "$ref" in body else body)
    return Call(
        name=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=operation.get("description", ""),
        open=operation.get("security") == [],
        rows=tuple(rows),
        takes=takes,
        answers=tuple(_answers(operation["responses"])),
    )


def _answers(responses: Schema) -> Iterator[Row]:
    for status, response in responses.items():
        kinds: list[str] = []
        links: list[str] = []
        for media, content in response.get("content", {}).items():
            named = "$ref" in content["schema"]
            kinds.append(_kind(content["schema"]) if named else media)
            links += _links(content["schema"])
        yield Row(status, " or ".join(kinds), False, response["description"], links=tuple(links))


def _fields(schema: Schema) -> Iterator[Row]:
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        told = {"schema": field, "required": name in required, **field}
        yield _row(name, told, "")
    for kind in schema.get("oneOf", ()):
        yield Row("", _kind(kind), False, "One of these.", links=_links(kind))


def _row(name: str, told: Schema, place: str) -> Row:
    schema = told["schema"]
    facts = [told["description"]] if "description" in told else []
    bounds = {key: schema.get(key) for key in _BOUNDS}
    facts += [_BOUNDS[key].format(fact) + "." for key, fact in bounds.items() if fact is not None]
    text = " ".join(fact[:1].upper() + fact[1:] for fact in facts)
    is_needed = told.get("required") is True
    return Row(name, _kind(schema), is_needed, text, place, _links(schema))


def _kind(schema: Schema) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "const" in schema:
        return f'"{schema["const"]}"'
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return " | ".join(_kind(kind) for kind in schema[several])
    kind = str(schema.get("type", "anything"))
    if kind == "array" and "items" in schema:
        return f"list of {_kind(schema['items'])}"
    return kind


def _links(schema: Schema) -> tuple[str, ...]:
    if "$ref" in schema:
        return (_kind(schema),)
    inner = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    inner += [schema["items"]] if isinstance(schema.get("items"), dict) else []
    return tuple(name for kind in inner for name in _links(kind))
