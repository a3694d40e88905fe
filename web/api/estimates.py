"""``/api/estimate``: what a file would take as a job, without making one."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

from flask import Blueprint, request
from flask.typing import ResponseReturnValue
from pydantic import Field

from runner.domain.lines import ENDPOINTS
from runner.services.file_estimates import FileEstimate, FileEstimator, Question
from web.api.batches import defaults_bytes
from web.api.bodies import Body, read_body
from web.api.estimate_objects import EstimateAnswer
from web.api.wire import estimate_object, fault_object, read_file_id
from web.auth import current_caller
from web.request_scope import current_runtime

bp = Blueprint("estimates", __name__)

_READ_BYTES = 256 * 1024
_FORM_BYTES = 2 * 1024**2
_ENDPOINTS = {"enum": [*ENDPOINTS, None]}


class EstimateFile(Body):
    """Which file is to be estimated, and as what."""

    input_file_id: Annotated[str, Field(description="The id of a file with purpose batch.")]
    endpoint: Annotated[
        str | None,
        Field(description="Else the url of the first line.", json_schema_extra=_ENDPOINTS),
    ] = None
    defaults: Annotated[dict[str, Any] | None, Field(description="As a batch would have them.")] = (
        None
    )


@bp.post("/estimate")
def estimate_file() -> ResponseReturnValue:
    """Estimate a file without making a batch.

    The file is one that was uploaded, named in a JSON body; or the body is the file itself, sent
    as ``application/x-ndjson`` (the endpoint may then be a parameter of the query), of which
    nothing is kept. Every prompt is counted with the model's own tokenizer, for 20 seconds at
    most; whatever is left is estimated by its bytes.
    """
    runtime = current_runtime()
    estimator = FileEstimator(runtime.sessions, runtime.settings, runtime.counters.open)
    question = Question(current_caller().project_id)
    if request.mimetype == "application/x-ndjson":
        question = replace(question, endpoint=request.args.get("endpoint"))
        request.max_content_length = runtime.settings.max_file_bytes + _FORM_BYTES
        return _answer(estimator.sent(_pieces(), question))
    body = read_body(EstimateFile)
    defaults = None if body.defaults is None else defaults_bytes(body.defaults)
    question = replace(question, endpoint=body.endpoint, defaults=defaults)
    file_id = read_file_id(body.input_file_id, "input_file_id")
    return _answer(estimator.stored(file_id, question))


def _pieces() -> Iterator[bytes]:
    while piece := request.stream.read(_READ_BYTES):
        yield piece


def _answer(told: FileEstimate) -> EstimateAnswer:
    return {
        "object": "estimate",
        "endpoint": told.endpoint,
        "model": told.models[0] if len(told.models) == 1 else None,
        "models": list(told.models),
        "lines_counted": told.counted,
        "too_long_lines": told.too_long,
        "too_long": list(told.too_long_lines),
        "refused_lines": told.refused,
        "equal_lines": told.equal,
        "fault_count": told.fault_count,
        "faults": [fault_object(fault) for fault in told.faults],
        "estimate": estimate_object(told.estimate),
    }
