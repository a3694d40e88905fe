"""The form that a line's answers must have: a JSON Schema, a pattern, or one of some texts."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from runner.domain.sound_json import UnsoundJson, read_json
from runner.inference.bodies import BadBody, SamplingBody, read_part
from runner.inference.sampling import require

_ANY_OBJECT = '{"type":"object"}'
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAX_CHOICES = 10_000


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What every answer of a line must look like.

    Attributes:
        kind: of ``text``.
        text: the schema as JSON, the pattern, or a JSON list of the texts to choose from.
        param: the field of the body that asks for it.
    """

    kind: Literal["json_schema", "regex", "choice"]
    text: str
    param: str


class _NamedSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class _ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: str
    json_schema: _NamedSchema | None = None


class _StructuredOutputs(msgspec.Struct, forbid_unknown_fields=True):
    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    json_object: bool | None = None


def read_format(body: SamplingBody, response_format: object = None) -> OutputFormat | None:
    """The form that a body asks for in OpenAI's or in vLLM's way; None where it asks for none.

    Raises:
        BadBody: a field has the wrong form, or two ask for different things.
    """
    found = [
        _response_format(response_format),
        _json(body.guided_json, "guided_json"),
        _regex(body.guided_regex, "guided_regex"),
        _choice(body.guided_choice, "guided_choice"),
        _structured_outputs(body.structured_outputs),
    ]
    asked = [one for one in found if one is not None]
    for other in asked[1:]:
        raise BadBody(f"Give {asked[0].param} or {other.param}, not both.", other.param)
    return asked[0] if asked else None


def _response_format(value: object) -> OutputFormat | None:
    param = "response_format"
    if value is None:
        return None
    asked = read_part(value, _ResponseFormat, param)
    if asked.type == "json_schema":
        if asked.json_schema is None:
            raise BadBody("The field json_schema is missing.", f"{param}.json_schema")
        name = asked.json_schema.name
        require(
            _NAME.fullmatch(name) is not None,
            "name has 1 to 64 letters, digits, underscores and dashes.",
            f"{param}.json_schema.name",
        )
        return _json(asked.json_schema.schema, param)
    require(
        asked.json_schema is None,
        'json_schema needs the type "json_schema".',
        f"{param}.json_schema",
    )
    if asked.type == "json_object":
        return OutputFormat("json_schema", _ANY_OBJECT, param)
    require(
        asked.type == "text",
        'type must be "text", "json_object" or "json_schema".',
        f"{param}.type",
    )
    return None


def _structured_outputs(value: object) -> OutputFormat | None:
    param = "structured_outputs"
    if value is None:
        return None
    asked = read_part(value, _StructuredOutputs, param)
    found = [
        _json(asked.json, param),
        _regex(asked.regex, param),
        _choice(asked.choice, param),
        OutputFormat("json_schema", _ANY_OBJECT, param) if asked.json_object else None,
    ]
    kinds = [one for one in found if one is not None]
    require(len(kinds) == 1, "Give exactly one of json, regex, choice and json_object.", param)
    return kinds[0]


def _json(schema: object, param: str) -> OutputFormat | None:
    """A schema, be it JSON or a text that holds JSON."""
    if schema is None:
        return None
    if isinstance(schema, str):
        try:
            schema = read_json(schema.encode())
        except UnsoundJson as error:
            raise BadBody(f"The schema {error}.", param, "invalid_json_schema") from None
    if not isinstance(schema, dict | bool):
        raise BadBody("A JSON Schema is a JSON object.", param, "invalid_json_schema")
    return OutputFormat("json_schema", msgspec.json.encode(schema).decode(), param)


def _regex(pattern: str | None, param: str) -> OutputFormat | None:
    if pattern is None:
        return None
    require(bool(pattern), f"The pattern of {param} is empty.", param)
    return OutputFormat("regex", pattern, param)


def _choice(texts: list[str] | None, param: str) -> OutputFormat | None:
    if texts is None:
        return None
    require(
        0 < len(texts) <= _MAX_CHOICES and all(texts),
        f"{param} holds 1 to {_MAX_CHOICES:,} texts, none of them empty.",
        param,
    )
    return OutputFormat("choice", msgspec.json.encode(texts).decode(), param)
