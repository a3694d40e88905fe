"""The application's own document, as the judge of what it answers."""

from copy import deepcopy
from functools import cache
from typing import Any

import jsonschema_rs
from flask import Request, Response

from runner.line_formats.schemas import line_schemas

Schema = dict[str, Any]


class Contract:
    """An OpenAPI document. Objects of answers have no fields but those it names."""

    def __init__(self, document: Schema) -> None:
        self.document = document
        self._components = {"schemas": _closed(document["components"]["schemas"])}
        self.validator = cache(self._validator)

    def breaches(self, request: Request, response: Response) -> list[str]:
        """In what an answer differs from the document; nothing for routes that it leaves out."""
        rule = request.url_rule
        if rule is None:
            return []
        path = rule.rule.replace("<path:", "<").replace("<", "{").replace(">", "}")
        operation = self.document["paths"].get(path, {}).get(request.method.lower())
        if operation is None:
            return []
        told = operation["responses"].get(str(response.status_code))
        what = f"{request.method} {path} {response.status_code}"
        if told is None:
            return [f"{what} is not in the document"]
        found = [
            f"{what} has no {name}" for name in told["headers"] if name not in response.headers
        ]
        return found + self._about_content(what, told.get("content", {}), response)

    def faults(self, name: str, value: object) -> list[str]:
        """In what a value differs from a schema."""
        return [str(fault) for fault in self.validator(name).iter_errors(value)]

    def _about_content(self, what: str, content: Schema, response: Response) -> list[str]:
        if not content:  # a 304, whose body the server drops
            return []
        if response.mimetype not in content:
            return [f"{what} is {response.mimetype}"]
        reference = content[response.mimetype]["schema"].get("$ref")
        if reference is None:
            return []
        name = reference.rpartition("/")[2]
        return [f"{what}: {fault}" for fault in self.faults(name, response.get_json())]

    def _validator(self, name: str) -> jsonschema_rs.Draft202012Validator:
        return jsonschema_rs.Draft202012Validator(
            {"$ref": f"#/components/schemas/{name}", "components": self._components}
        )


def line_contract() -> Contract:
    """The schemas of lines alone, as the application's document has them."""
    return Contract({"components": {"schemas": line_schemas("#/components/schemas/{name}")}})


def _closed(schemas: Schema) -> Schema:
    """Schemas that let no unknown field pass, but for the input lines, which may have others."""
    closed = deepcopy(schemas)
    for name, schema in closed.items():
        if not name.endswith("InputLine"):
            _close(schema)
    return closed


def _close(schema: Schema) -> None:
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
        for field in schema["properties"].values():
            _close(field)
