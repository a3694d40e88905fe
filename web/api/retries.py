"""``/api/jobs/{id}/retry`` and ``/merged``: what failed once more, and all of it as one."""

from flask import Blueprint, request
from flask.typing import ResponseReturnValue

from runner.domain.errors import InvalidRequest
from runner.domain.ids import JobId
from runner.services import contents, jobs, retries
from runner.services.retries import RetryLines
from web.api.bodies import Body, read_body
from web.api.wire import batch_object, read_batch_id
from web.auth import current_caller
from web.downloads import send_pieces
from web.request_scope import current_runtime, current_session

bp = Blueprint("retries", __name__)

_LINES = "application/x-ndjson"


class RetryJob(Body):
    """Which lines to retry: ``all`` without an answer, the ``failed``, or the ``unfinished``."""

    lines: str = RetryLines.ALL


@bp.post("/jobs/<job_id>/retry")
def retry_job(job_id: str) -> ResponseReturnValue:
    """Run the lines of an ended batch that have no answer as a batch of their own.

    The file is not copied, and each batch has its own usage. Without a body all lines without an
    answer are taken.
    """
    wanted = _known(job_id)
    body = read_body(RetryJob) if request.get_data() else RetryJob()
    try:
        lines = RetryLines(body.lines)
    except ValueError:
        raise InvalidRequest(
            f"lines must be one of {', '.join(RetryLines)}.", param="lines"
        ) from None
    shard_lines = current_runtime().settings.shard_lines
    return batch_object(
        retries.retry_job(current_session(), current_caller(), wanted, lines, shard_lines)
    )


@bp.get("/jobs/<job_id>/merged/output")
def show_merged_output(job_id: str) -> ResponseReturnValue:
    """The answers of a batch and its retries as one, in line order, so far."""
    lines = retries.read_merged(current_runtime().sessions, _known(job_id), contents.OUTPUT)
    return send_pieces(lines, f"{job_id}_merged_output.jsonl", _LINES)


@bp.get("/jobs/<job_id>/merged/errors")
def show_merged_errors(job_id: str) -> ResponseReturnValue:
    """The lines to which neither a batch nor its retries have an answer, so far."""
    lines = retries.read_merged(current_runtime().sessions, _known(job_id), contents.ERROR)
    return send_pieces(lines, f"{job_id}_merged_errors.jsonl", _LINES)


def _known(job_id: str) -> JobId:
    wanted = read_batch_id(job_id, "job_id")
    return jobs.get_job(current_session(), current_caller().project_id, wanted).id
