"""The OpenAPI 3.1 document, put together from the routes, the table of operations and the types."""

import inspect
import re
from importlib.metadata import version
from typing import Any

import msgspec
from flask import Flask
from pydantic.json_schema import models_json_schema

from runner.line_formats.schemas import ERROR, INPUT, OUTPUT, line_schemas
from web.api.bodies import Body
from web.api.objects import ErrorEnvelope, Problem, Unready
from web.reference.codes import LINE_CODES, REQUEST_CODES, RUN_CODES
from web.reference.operations import OPERATIONS, Operation
from web.reference.parameters import PATH
from web.reference.responses import answer_of, error_answers

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_NAMED = re.compile(r"<(?:path:)?(\w+)>")
_INTRODUCTION = (
    "Managed batch inference. Under `/v1` the words and shapes are those of OpenAI's Batch API, so "
    "its clients work with another base URL; fields of our own are named as such. Hand in a file "
    f"whose lines are `{INPUT}`, create a batch on it, and read `{OUTPUT}` and `{ERROR}` lines "
    "back. Every error is one object with a `code` and a sentence that says what to do. Answers to "
    "a key with a limit tell it in `x-ratelimit-limit-requests`, `-remaining-requests` and "
    "`-reset-requests`."
)


def build_document(app: Flask) -> Schema:
    """The whole document of an application.

    Raises:
        LookupError: the table of operations names a route that the application does not have.
    """
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tokenmill",
            "version": version("tokenmill"),
            "summary": "Managed batch inference.",
            "description": _INTRODUCTION,
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": _as_markdown(_paths(app)),
        "components": {
            "schemas": _as_markdown(_schemas()),
            "securitySchemes": {
                "key": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of a project: tokenmill keys create.",
                }
            },
        },
        "x-error-codes": {"requests": REQUEST_CODES, "lines": LINE_CODES, "runs": RUN_CODES},
    }


def _paths(app: Flask) -> Schema:
    docs = {
        (method, rule.rule): inspect.getdoc(app.view_functions[rule.endpoint]) or ""
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }
    paths: Schema = {}
    for (method, rule), operation in OPERATIONS.items():
        path = _NAMED.sub(r"{\1}", rule)
        described = _operation(method, path, operation, docs[method, rule])
        paths.setdefault(path, {})[method.lower()] = described
    return paths


def _operation(method: str, path: str, operation: Operation, doc: str) -> Schema:
    summary, _, rest = doc.partition("\n")
    named = re.findall(r"{(\w+)}", path)
    keyed = path.startswith(("/v1/", "/api/"))
    statuses = {400, 415, 500, 503, *operation.statuses}
    # A reader too may need room on a full disk, to sort in or to note that a key was used.
    statuses |= {401, 429, 507} if keyed else set()
    statuses |= {404} if named else set()
    described: Schema = {
        "operationId": _operation_id(method, path),
        "tags": [_tag(path)],
        "summary": summary.rstrip("."),
        "parameters": [
            *({"name": name, "in": "path", "required": True, **PATH[name]} for name in named),
            *operation.parameters,
        ],
        "responses": {
            "200": answer_of(operation.answer, summary, operation.also),
            **error_answers(statuses, path, operation.answer),
        },
    }
    if rest.strip():
        described["description"] = inspect.cleandoc(rest)
    if operation.body is not None:
        described["requestBody"] = _request_body(operation.body, operation.needs_body)
    if not keyed:
        described["security"] = []
    return described


def _request_body(body: type[Body] | Schema, required: bool) -> Schema:
    if isinstance(body, dict):
        return {"required": True, "content": {"multipart/form-data": {"schema": body}}}
    schema = {"$ref": _REF.format(name=body.__name__)}
    return {"required": required, "content": {"application/json": {"schema": schema}}}


def _operation_id(method: str, path: str) -> str:
    words = [word.strip("{}") for word in path.split("/") if word not in ("", "v1")]
    return "_".join((method.lower(), *words))


def _tag(path: str) -> str:
    _, *rest = path.strip("/").split("/")
    return rest[0] if rest else "installation"


def _schemas() -> Schema:
    bodies: list[type[Body]] = []
    answers: list[type] = [ErrorEnvelope, Problem, Unready]
    for operation in OPERATIONS.values():
        if isinstance(operation.body, type) and operation.body not in bodies:
            bodies.append(operation.body)
        if isinstance(operation.answer, type) and operation.answer not in answers:
            answers.append(operation.answer)
    _, asked = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF.format(name="{model}")
    )
    _, answered = msgspec.json.schema_components(answers, ref_template=_REF)
    lines = line_schemas(_REF)
    return {**asked["$defs"], **answered, **lines}


def _as_markdown(value: Any) -> Any:  # noqa: ANN401
    """Docstrings mark code with two backticks, the document with one."""
    if isinstance(value, dict):
        return {name: _as_markdown(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_as_markdown(inner) for inner in value]
    return value.replace("``", "`") if isinstance(value, str) else value
