"""``/v1/uploads``: large files in parts, as the official client sends them."""

import re
from typing import Annotated
from uuid import UUID

from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field

from runner.domain.errors import InvalidRequest
from runner.domain.ids import PART_PREFIX, UPLOAD_PREFIX, UploadId, decode, encode
from runner.services import uploads
from runner.services.files import INPUT_PURPOSE
from runner.services.uploads import MAX_PART_BYTES, NewUpload, PartRecord, UploadRecord
from web.api.batches import OutputExpiry
from web.api.bodies import Body, Whole, read_body
from web.api.file_objects import PartObject, UploadObject
from web.api.idempotency import is_retry
from web.api.wire import file_object, read_id, seconds
from web.auth import current_caller
from web.multipart import open_multipart, read_only_part
from web.request_scope import current_runtime, current_session

bp = Blueprint("uploads", __name__)

_MD5 = re.compile(r"[0-9a-fA-F]{32}", re.ASCII)


class CreateUpload(Body):
    """The body of a create. Any MIME type will do: lines are read as what they are."""

    bytes: Annotated[Whole, Field(json_schema_extra={"minimum": 1})]
    filename: str
    mime_type: str
    purpose: Annotated[str, Field(json_schema_extra={"enum": [INPUT_PURPOSE]})]
    expires_after: OutputExpiry | None = None


class CompleteUpload(Body):
    """The body of a complete."""

    part_ids: list[str]
    md5: Annotated[str | None, Field(json_schema_extra={"pattern": f"^{_MD5.pattern}$"})] = None


@bp.post("/uploads")
def create_upload() -> ResponseReturnValue:
    """Announce a file that will come in parts."""
    body = read_body(CreateUpload)
    if body.purpose != INPUT_PURPOSE:
        raise InvalidRequest(
            f"purpose must be {INPUT_PURPOSE!r}.", code="invalid_value", param="purpose"
        )
    expiry = body.expires_after
    new = NewUpload(body.filename, body.bytes, None if expiry is None else expiry.seconds)
    max_bytes = current_runtime().settings.max_file_bytes
    project_id = current_caller().project_id
    return _upload_object(uploads.create_upload(current_session(), project_id, new, max_bytes))


@bp.post("/uploads/<upload_id>/parts")
def add_part(upload_id: str) -> ResponseReturnValue:
    """Store one part while it arrives."""
    wanted, project_id = _read_upload_id(upload_id), current_caller().project_id
    uploads.get_upload(current_session(), project_id, wanted)
    stream, boundary = open_multipart(MAX_PART_BYTES, "data")
    pieces = read_only_part(stream, boundary, "data")
    return _part_object(uploads.add_part(current_session(), project_id, wanted, pieces))


@bp.post("/uploads/<upload_id>/complete")
def complete_upload(upload_id: str) -> ResponseReturnValue:
    """Make a file of the parts; a retry of the call that did so gets the same answer."""
    wanted, project_id = _read_upload_id(upload_id), current_caller().project_id
    before = uploads.get_upload(current_session(), project_id, wanted)
    body = read_body(CompleteUpload)
    if is_retry() and before.status == "completed":
        return _upload_object(before)
    if body.md5 is not None and not _MD5.fullmatch(body.md5):
        raise InvalidRequest("md5 must be 32 hexadecimal digits.", param="md5")
    parts = [_read_part_id(text) for text in body.part_ids]
    session = current_session()
    return _upload_object(
        uploads.complete_upload(session, project_id, wanted, parts, body.md5 or None)
    )


@bp.post("/uploads/<upload_id>/cancel")
def cancel_upload(upload_id: str) -> ResponseReturnValue:
    """Give an upload up."""
    wanted, project_id = _read_upload_id(upload_id), current_caller().project_id
    return _upload_object(uploads.cancel_upload(current_session(), project_id, wanted))


def _read_upload_id(text: str) -> UploadId:
    return UploadId(read_id(UPLOAD_PREFIX, text, "Upload object", "upload_id"))


def _read_part_id(text: str) -> UUID:
    part_id = decode(PART_PREFIX, text)
    if part_id is None:
        raise InvalidRequest(f"{text[:100]!r} is no id of a part.", param="part_ids")
    return part_id


def _upload_object(upload: UploadRecord) -> UploadObject:
    return {
        "id": encode(UPLOAD_PREFIX, upload.id),
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": seconds(upload.created_at),
        "filename": upload.filename,
        "purpose": INPUT_PURPOSE,
        "status": upload.status,
        "expires_at": seconds(upload.expires_at),
        "file": None if upload.file is None else file_object(upload.file),
    }


def _part_object(part: PartRecord) -> PartObject:
    return {
        "id": encode(PART_PREFIX, part.id),
        "object": "upload.part",
        "created_at": seconds(part.created_at),
        "upload_id": encode(UPLOAD_PREFIX, part.upload_id),
    }
