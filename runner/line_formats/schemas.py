"""JSON schemas of all lines: the body of each endpoint as it is read, its answer, and its errors.

A new endpoint is one more entry of ``FORMATS``.
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from runner.domain.lines import MAX_CUSTOM_ID, BodyHead, Line
from runner.inference.bodies import ChatBody, CompletionBody
from runner.inference.embeddings import EmbeddingsBody
from runner.inference.responses import ResponsesBody
from runner.line_formats.objects import (
    ChatCompletion,
    FailedLine,
    TextCompletion,
    UnfinishedLine,
)
from runner.line_formats.vectors_and_responses import EmbeddingList, ResponseObject

Schema = dict[str, Any]

INPUT, OUTPUT, ERROR = "InputLine", "OutputLine", "ErrorLine"


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The lines of one endpoint: ``name`` in the schemas' names, their body and their answer."""

    name: str
    body: type[msgspec.Struct]
    answer: type


FORMATS = {
    "/v1/chat/completions": LineFormat("Chat", ChatBody, ChatCompletion),
    "/v1/completions": LineFormat("Completion", CompletionBody, TextCompletion),
    "/v1/embeddings": LineFormat("Embeddings", EmbeddingsBody, EmbeddingList),
    "/v1/responses": LineFormat("Response", ResponsesBody, ResponseObject),
}


def line_schemas(ref_template: str) -> dict[str, Schema]:
    """All schemas by name; ``InputLine``, ``OutputLine`` and ``ErrorLine`` are the files' lines."""
    types = [FailedLine, UnfinishedLine]
    for each in FORMATS.values():
        types += [each.body, each.answer]
    _, schemas = msgspec.json.schema_components(types, ref_template=ref_template)
    for endpoint, each in FORMATS.items():
        _close(schemas[each.body.__name__])
        own = ref_template.format(name=each.body.__name__)
        answer = ref_template.format(name=each.answer.__name__)
        schemas[f"{each.name}InputLine"] = _input_line(endpoint, {"$ref": own})
        schemas[f"{each.name}OutputLine"] = _output_line(endpoint, {"$ref": answer})
    for name in (INPUT, OUTPUT):
        kinds = [ref_template.format(name=each.name + name) for each in FORMATS.values()]
        schemas[name] = {"oneOf": [{"$ref": kind} for kind in kinds]}
    failed = (FailedLine.__name__, UnfinishedLine.__name__)
    schemas[ERROR] = {"oneOf": [{"$ref": ref_template.format(name=name)} for name in failed]}
    return schemas


def _close(body: Schema) -> None:
    """Unknown fields are refused by name; what the defaults may give may be left out."""
    body["additionalProperties"] = False
    needed = [field.name for field in msgspec.structs.fields(BodyHead) if field.required]
    body["required"] = [name for name in body.get("required", []) if name not in needed]
    body["description"] += " The model may stand in the batch's defaults instead."


def _input_line(endpoint: str, body: Schema) -> Schema:
    line: Schema = msgspec.json.schema_components([Line], ref_template="{name}")[1][Line.__name__]
    line["title"] = f"A line for {endpoint}"
    line["description"] = "One request; other fields beside these are ignored."
    line["properties"] |= {
        "custom_id": {"type": "string", "minLength": 1, "maxLength": MAX_CUSTOM_ID},
        "url": {"const": endpoint},
        "body": body,
    }
    return line


def _output_line(endpoint: str, answer: Schema) -> Schema:
    failed = msgspec.json.schema_components([FailedLine], ref_template="{name}")[1]
    response = failed["FailureResponse"]
    response["properties"] |= {"status_code": {"const": 200}, "body": answer}
    response.pop("title")
    response["description"] = "The answer."
    line: Schema = failed[FailedLine.__name__]
    line["title"] = f"An answer of {endpoint}"
    line["description"] = "A line of an output file: the line succeeded."
    line["properties"] |= {"custom_id": {"type": "string"}, "response": response}
    return line
