"""``/v1/batches``: the contract's name for jobs."""

import hashlib
import json
from typing import Annotated, Any, Literal

from flask import Blueprint, jsonify, request
from flask.typing import ResponseReturnValue
from pydantic import Field, JsonValue

from runner.domain.budgets import ON_BUDGET
from runner.domain.errors import InvalidRequest
from runner.domain.ids import FILE_PREFIX, FileId, decode
from runner.domain.lines import ENDPOINTS
from runner.domain.reuse import Dedupe
from runner.domain.states import JobState
from runner.domain.windows import WINDOW_PATTERN
from runner.services import files, jobs
from runner.services.jobs import NewJob
from web.api.amounts import Money, read_money
from web.api.bodies import Body, Whole, read_body
from web.api.control_fields import Priority, RunHoursText, StartAfter, read_moment
from web.api.idempotency import is_retry, read_idempotency_key
from web.api.lists import list_object, read_limit
from web.api.wire import batch_object, read_batch_id
from web.auth import current_caller
from web.request_scope import current_session

bp = Blueprint("batches", __name__)

# What the services check, told in the document.
_LIFE: dict[str, JsonValue] = {"minimum": files.SHORTEST_LIFE, "maximum": files.LONGEST_LIFE}
_METADATA: dict[str, JsonValue] = {
    "maxProperties": jobs.METADATA_KEYS,
    "propertyNames": {"maxLength": jobs.METADATA_KEY_LETTERS},
    "additionalProperties": {"type": "string", "maxLength": jobs.METADATA_LETTERS},
}
_DEFAULTS: dict[str, JsonValue] = {
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array"},
        "stream": {"enum": [False, None]},
    }
}
_TAGS: dict[str, JsonValue] = {
    "maxItems": jobs.MAX_TAGS,
    "uniqueItems": True,
    "items": {"type": "string", "minLength": 1, "maxLength": jobs.TAG_LETTERS},
}
_P99: dict[str, JsonValue] = {"minimum": 1, "maximum": jobs.MAX_P99_MS}
_ABOUT_TAGS = "Ours: words for what the batch is for; costs are told by them."
_ABOUT_P99 = "Ours: an alert tells when the 99th percentile of the lines' time is above this."
_ABOUT_WINDOW = "From 10s to 7d; OpenAI's clients say 24h."
_ABOUT_MAX_COST = "Ours: the batch pauses before it is billed more."
_ABOUT_ON_BUDGET = "Ours: whether a batch that will not fit its limits is refused, or pauses then."
_ABOUT_INVALID = "Ours: whether a bad line fails the batch, or only itself."
_ABOUT_DEDUPE = (
    "Ours: how far lines look for an equal one whose answer they take: not at all, in the batch, "
    "or in all batches of the project that say the same. Only lines whose answer does not hang on "
    "chance are equal: temperature 0, a seed, or embeddings."
)
_ABOUT_DEFAULTS = "Ours: fields that lie under the body of every line; the line wins."

DedupeText = Annotated[
    str, Field(description=_ABOUT_DEDUPE, json_schema_extra={"enum": list(Dedupe)})
]
Tags = Annotated[list[str], Field(description=_ABOUT_TAGS, json_schema_extra=_TAGS)]


class OutputExpiry(Body):
    """How long the files of a batch live after they were made."""

    anchor: Literal["created_at"]
    seconds: Annotated[Whole, Field(json_schema_extra=_LIFE)]


class CreateBatch(Body):
    """The body of a create: the contract's fields, then ours."""

    input_file_id: Annotated[str, Field(description="The id of a file with purpose batch.")]
    endpoint: Annotated[str, Field(json_schema_extra={"enum": list(ENDPOINTS)})]
    completion_window: Annotated[
        str, Field(description=_ABOUT_WINDOW, json_schema_extra={"pattern": WINDOW_PATTERN})
    ]
    metadata: Annotated[dict[str, str] | None, Field(json_schema_extra=_METADATA)] = None
    output_expires_after: OutputExpiry | None = None
    priority: Priority = 0
    start_after: StartAfter | None = None
    run_hours: RunHoursText | None = None
    on_invalid: Annotated[
        str, Field(description=_ABOUT_INVALID, json_schema_extra={"enum": list(jobs.ON_INVALID)})
    ] = "fail"
    dedupe: DedupeText = Dedupe.OFF
    defaults: Annotated[
        dict[str, Any] | None, Field(description=_ABOUT_DEFAULTS, json_schema_extra=_DEFAULTS)
    ] = None
    tags: Tags = []
    max_cost: Annotated[Money | None, Field(description=_ABOUT_MAX_COST)] = None
    on_budget: Annotated[
        str, Field(description=_ABOUT_ON_BUDGET, json_schema_extra={"enum": list(ON_BUDGET)})
    ] = "refuse"
    p99_ms: Annotated[Whole | None, Field(description=_ABOUT_P99, json_schema_extra=_P99)] = None


@bp.post("/batches")
def create_batch() -> ResponseReturnValue:
    """Accept a batch, or give the one that an earlier try of this very request made."""
    wanted = _new_job(read_body(CreateBatch))
    return batch_object(jobs.create_job(current_session(), current_caller(), wanted))


@bp.get("/batches")
def list_batches() -> ResponseReturnValue:
    """A page of the project's batches, newest first."""
    after = request.args.get("after")
    cursor = None if after is None else read_batch_id(after, "after")
    limit = read_limit(default=20, maximum=100)
    page = jobs.list_jobs(current_session(), current_caller().project_id, cursor, limit)
    return list_object([batch_object(job) for job in page.items], page.has_more)


@bp.get("/batches/<batch_id>")
def show_batch(batch_id: str) -> ResponseReturnValue:
    """One batch; a poll that knows its present state gets a 304."""
    job_id = read_batch_id(batch_id)
    job = jobs.get_job(current_session(), current_caller().project_id, job_id)
    response = jsonify(batch_object(job))
    response.headers["Cache-Control"] = "private, no-cache"
    response.add_etag()
    return response.make_conditional(request)


@bp.post("/batches/<batch_id>/cancel")
def cancel_batch(batch_id: str) -> ResponseReturnValue:
    """Stop a batch; its finished lines stay. A retry of the call that did so is no error."""
    job_id, project_id = read_batch_id(batch_id), current_caller().project_id
    before = jobs.get_job(current_session(), project_id, job_id)
    if is_retry() and before.state is JobState.CANCELLED:
        return batch_object(before)
    return batch_object(jobs.cancel_job(current_session(), project_id, job_id))


def _new_job(body: CreateBatch) -> NewJob:
    file_id = decode(FILE_PREFIX, body.input_file_id)
    if file_id is None:
        raise InvalidRequest("There is no such file in this project.", param="input_file_id")
    expiry = body.output_expires_after
    return NewJob(
        input_file_id=FileId(file_id),
        endpoint=body.endpoint,
        completion_window=body.completion_window,
        request_sha256=hashlib.sha256(b"POST /v1/batches\n" + request.get_data()).digest(),
        metadata=body.metadata,
        priority=body.priority,
        start_after=read_moment(body.start_after, "start_after"),
        run_hours=body.run_hours,
        on_invalid=body.on_invalid,
        dedupe=body.dedupe,
        output_expires_seconds=None if expiry is None else expiry.seconds,
        defaults=None if body.defaults is None else defaults_bytes(body.defaults),
        tags=tuple(body.tags),
        max_cost_nano=read_money(body.max_cost, "max_cost"),
        on_budget=body.on_budget,
        p99_bound_ms=body.p99_ms,
        idempotency_key=read_idempotency_key(),
        is_retry=is_retry(),
    )


def defaults_bytes(value: dict[str, Any]) -> bytes:
    """The block as it is kept."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:  # NaN, or a number like 1e400
        raise InvalidRequest(
            "defaults holds a number out of range: numbers are finite.",
            code="invalid_defaults",
            param="defaults",
        ) from None
    return text.encode()
