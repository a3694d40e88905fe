"""Parameters of the API that are in no typed body: of queries, headers, paths and forms."""

from typing import Any

from runner.domain.lines import ENDPOINTS
from runner.services.costs import DIMENSIONS
from runner.services.files import INPUT_PURPOSE, LONGEST_LIFE, SHORTEST_LIFE
from web.api.idempotency import KEY_LETTERS
from web.api.usage import FORMATS

Schema = dict[str, Any]


def _query(name: str, text: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _header(name: str, text: str, schema: Schema) -> Schema:
    return {"name": name, "in": "header", "description": text, "schema": schema}


def _limit(default: int, maximum: int) -> Schema:
    text = "How many items a page has at most."
    bounds = {"type": "integer", "minimum": 1, "maximum": maximum, "default": default}
    return _query("limit", text, bounds)


UP_TO_100 = _limit(20, 100)
UP_TO_1000 = _limit(100, 1000)
UP_TO_10000 = _limit(10_000, 10_000)
AFTER = _query("after", "The id of the last item of the page before.", {"type": "string"})
AFTER_INDEX = _query(
    "after", "The index of the last line of the page before.", {"type": "integer", "minimum": -1}
)
ORDER = _query(
    "order",
    "By the time of creation: oldest or newest first.",
    {"enum": ["asc", "desc"], "default": "desc"},
)
_DAY: Schema = {"type": "string", "format": "date"}
SPENDING = (
    _query(
        "group_by",
        f"Dimensions with commas between: {', '.join(DIMENSIONS)}.",
        {"type": "string", "default": "day"},
    ),
    _query("from", "The first day, in UTC.", _DAY),
    _query("to", "The last day, in UTC.", _DAY),
    _query("model", "Only lines of this model.", {"type": "string"}),
    _query("key", "Only jobs that this key made.", {"type": "string"}),
    _query("tag", "Only jobs of this tag.", {"type": "string"}),
    _query("schedule", "Only jobs of this schedule.", {"type": "string"}),
    _query("job", "Only this batch.", {"type": "string"}),
    _query(
        "format",
        "JSON, the same groups as a table, or charges as FOCUS 1.2 wants them.",
        {"enum": list(FORMATS), "default": "json"},
    ),
)
ESTIMATE_ENDPOINT = _query(
    "endpoint",
    "Of a file that is sent as the body; else the url of its first line.",
    {"enum": list(ENDPOINTS)},
)
PURPOSE = _query("purpose", "Only files of this purpose.", {"type": "string"})
TAG = _query("tag", "Only files with this tag.", {"type": "string"})
RANGE = _header("Range", "One range of bytes, such as bytes=0-99.", {"type": "string"})
IDEMPOTENCY_KEY = _header(
    "Idempotency-Key",
    "The same key with the same body gives what the first try made; with another body it is "
    "refused. It stands for two days.",
    {"type": "string", "minLength": 1, "maxLength": KEY_LETTERS},
)
RETRY_COUNT = _header(
    "x-stainless-retry-count",
    "How often the client has sent this very request before; above 0, the answer of the first "
    "is given again.",
    {"type": "string", "pattern": "^[0-9]{1,4}$"},
)

FILE_FORM: Schema = {
    "type": "object",
    "description": "The expiry must come before the file.",
    "properties": {
        "purpose": {"enum": [INPUT_PURPOSE]},
        "expires_after[anchor]": {"enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": SHORTEST_LIFE,
            "maximum": LONGEST_LIFE,
        },
        "file": {
            "type": "string",
            "format": "binary",
            "description": "Lines of JSON, each an InputLine; sent with a filename.",
        },
    },
    "required": ["purpose", "file"],
    "dependentRequired": {
        "expires_after[anchor]": ["expires_after[seconds]"],
        "expires_after[seconds]": ["expires_after[anchor]"],
    },
    "additionalProperties": False,
}
CONTENT_FORM: Schema = {
    "type": "object",
    "properties": {
        "data": {
            "type": "string",
            "format": "binary",
            "minLength": 1,
            "description": "The bytes of the part; sent with a filename.",
        }
    },
    "required": ["data"],
    "additionalProperties": False,
}

PATH: dict[str, Schema] = {
    "file_id": {"description": "The id of a file.", "schema": {"type": "string"}},
    "batch_id": {"description": "The id of a batch.", "schema": {"type": "string"}},
    "job_id": {"description": "The id of a batch.", "schema": {"type": "string"}},
    "budget_id": {"description": "The id of a budget.", "schema": {"type": "string"}},
    "schedule_id": {"description": "The id of a schedule.", "schema": {"type": "string"}},
    "worker_id": {"description": "The id of an engine worker.", "schema": {"type": "string"}},
    "webhook_id": {"description": "The id of a webhook.", "schema": {"type": "string"}},
    "delivery_id": {"description": "The id of a delivery.", "schema": {"type": "string"}},
    "upload_id": {"description": "The id of an upload.", "schema": {"type": "string"}},
    "name": {
        "description": "The name of a model; its slashes need no escape.",
        "schema": {"type": "string"},
    },
}
