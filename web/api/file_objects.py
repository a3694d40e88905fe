"""Files and uploads as the wire has them."""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from web.api.objects import (
    Count,
    FileIdText,
    Identified,
    ListObject,
    PartIdText,
    UnixSeconds,
    UploadIdText,
)


class FileObject(Identified):
    """An uploaded file, or the output or error file of a batch."""

    object: Literal["file"]
    bytes: Count
    created_at: UnixSeconds
    filename: str
    purpose: Annotated[str, Meta(extra_json_schema={"enum": ["batch", "batch_output"]})]
    status: Literal["processed"]
    status_details: None
    expires_at: NotRequired[UnixSeconds]
    tags: NotRequired[Annotated[list[str], Meta(description="Tokenmill's own.")]]


class DeletedFile(TypedDict):
    """What is left of a file that was deleted."""

    id: FileIdText
    object: Literal["file"]
    deleted: Literal[True]


class UploadObject(Identified):
    """A file that comes in parts; ``file`` is set once it is completed."""

    object: Literal["upload"]
    bytes: Count
    created_at: UnixSeconds
    filename: str
    purpose: Annotated[str, Meta(extra_json_schema={"enum": ["batch"]})]
    status: Annotated[
        str, Meta(extra_json_schema={"enum": ["pending", "completed", "cancelled", "expired"]})
    ]
    expires_at: UnixSeconds
    file: FileObject | None


class PartObject(TypedDict):
    """One part of an upload."""

    id: PartIdText
    object: Literal["upload.part"]
    created_at: UnixSeconds
    upload_id: UploadIdText


class FileList(ListObject[FileObject]):
    """One page of files; ``last_id`` is the ``after`` of the next."""
