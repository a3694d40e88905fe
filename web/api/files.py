"""``/v1/files``: inputs in, inputs and results out."""

from dataclasses import replace

from flask import Blueprint, request
from flask.typing import ResponseReturnValue

from runner.services import files
from runner.services.files import FileFilter
from web.api.idempotency import read_idempotency_key
from web.api.lists import list_object, read_ascending, read_limit
from web.api.wire import deleted_file_object, file_object, read_file_id
from web.auth import current_caller
from web.downloads import send_file
from web.request_scope import current_runtime, current_session
from web.upload_form import open_form

bp = Blueprint("files", __name__)


@bp.post("/files")
def create_file() -> ResponseReturnValue:
    """Store an upload while it arrives, or give the file that an earlier try of it made."""
    max_bytes = current_runtime().settings.max_file_bytes
    form = open_form(max_bytes)
    project_id = current_caller().project_id
    upload = replace(form.begin(), idempotency_key=read_idempotency_key())
    file = files.create_file(current_session(), project_id, upload, max_bytes)
    form.finish()
    return file_object(file)


@bp.get("/files")
def list_files() -> ResponseReturnValue:
    """A page of the project's files, newest first unless asked otherwise."""
    after = request.args.get("after")
    wanted = FileFilter(
        purpose=request.args.get("purpose"),
        tag=request.args.get("tag"),
        after=None if after is None else read_file_id(after, "after"),
        limit=read_limit(default=10_000, maximum=10_000),
        ascending=read_ascending(),
    )
    page = files.list_files(current_session(), current_caller().project_id, wanted)
    return list_object([file_object(file) for file in page.items], page.has_more)


@bp.get("/files/<file_id>")
def show_file(file_id: str) -> ResponseReturnValue:
    """One file."""
    wanted = read_file_id(file_id)
    return file_object(files.get_file(current_session(), current_caller().project_id, wanted))


@bp.get("/files/<file_id>/content")
def show_content(file_id: str) -> ResponseReturnValue:
    """What is in a file, or a range of it."""
    wanted = read_file_id(file_id)
    return send_file(files.get_file(current_session(), current_caller().project_id, wanted))


@bp.delete("/files/<file_id>")
def delete_file(file_id: str) -> ResponseReturnValue:
    """Hide a file at once; batches that read it go on."""
    gone = read_file_id(file_id)
    files.delete_file(current_session(), current_caller().project_id, gone)
    return deleted_file_object(gone)
