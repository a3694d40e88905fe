"""``/api/files``: words by which schedules find files."""

from typing import Annotated

from flask import Blueprint
from flask.typing import ResponseReturnValue
from pydantic import Field, JsonValue

from runner.domain.tags import MOST_TAGS, TAG_LETTERS
from runner.services import files
from web.api.bodies import Body, read_body
from web.api.wire import file_object, read_file_id
from web.auth import current_caller
from web.request_scope import current_session

bp = Blueprint("file_tags", __name__)

_TAGS: dict[str, JsonValue] = {
    "maxItems": MOST_TAGS,
    "items": {"type": "string", "minLength": 1, "maxLength": TAG_LETTERS},
}


class ChangeFile(Body):
    """The tags that a file is to have, and no others."""

    tags: Annotated[list[str], Field(json_schema_extra=_TAGS)]


@bp.patch("/files/<file_id>")
def change_file(file_id: str) -> ResponseReturnValue:
    """Give a file tags; a schedule may read the newest file with one."""
    session, project_id = current_session(), current_caller().project_id
    wanted = files.get_file(session, project_id, read_file_id(file_id)).id
    return file_object(files.tag_file(session, project_id, wanted, read_body(ChangeFile).tags))
