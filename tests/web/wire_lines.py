"""Lines of input files as tests write them, and lines of results as they read them."""

import json
from typing import Any

from flask.testing import FlaskClient

CHAT = "/v1/chat/completions"


def line(custom_id: str = "x", **fields: object) -> bytes:
    """A good line, but for the fields given."""
    body = {"model": "org/tiny", "messages": [{"role": "user", "content": "Hello."}]}
    whole = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body, **fields}
    return json.dumps({name: value for name, value in whole.items() if value != "absent"}).encode()


def chat(custom_id: str = "x", **fields: object) -> bytes:
    """A good line, but for the fields of its body."""
    body = {"model": "org/tiny", "messages": [{"role": "user", "content": "Hello."}], **fields}
    return line(custom_id, body=body)


def lines_of(api: FlaskClient, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of an output or error file."""
    if file_id is None:
        return []
    data = api.get(f"/v1/files/{file_id}/content").data
    return [json.loads(part) for part in data.split(b"\n")[:-1]]
