"""A browser that signed in, without a script: what tests of the pages act with."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flask.testing import FlaskClient
from werkzeug.test import TestResponse

Form = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Visitor:
    """A client with a session's cookie."""

    client: FlaskClient
    write_form: Form

    def get(self, path: str) -> TestResponse:
        """A page."""
        return self.client.get(path)

    def token(self) -> str:
        """The token that its forms carry."""
        return token_of(self.client.get("/").text)

    def post(self, path: str, **fields: str) -> TestResponse:
        """Send a form as the page would; ``fields`` change it."""
        return self.client.post(path, data={"csrf_token": self.token()} | fields)

    def upload(self, data: bytes, name: str = "lines.jsonl", **fields: str) -> TestResponse:
        """Send the form of a new job; ``fields`` change it."""
        told = {"csrf_token": self.token(), "purpose": "batch", "on_invalid": "fail"} | fields
        return self.client.post("/jobs", **self.write_form(*told.items(), ("file", data, name)))


def token_of(page: str) -> str:
    """The token in the first form of a page."""
    found = re.search(r'name="csrf_token" value="([0-9a-f]{64})"', page)
    assert found is not None, page
    return found[1]
