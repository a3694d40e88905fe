"""The document as JSON for programs, and as one page without a script for people."""

import json
from collections.abc import Callable
from functools import cached_property
from typing import Any

from flask import Response, make_response, render_template

from web.reference.rows import chapters, objects
from web.ui import headers

Schema = dict[str, Any]


class Reference:
    """Both views of one document, which is made when it is first asked for."""

    def __init__(self, build: Callable[[], Schema]) -> None:
        self._build = build

    @cached_property
    def document(self) -> Schema:
        """The document."""
        return self._build()

    @cached_property
    def _encoded(self) -> bytes:
        return json.dumps(self.document, ensure_ascii=False, separators=(",", ":")).encode()

    def send_document(self) -> Response:
        """The OpenAPI document of this installation."""
        response = Response(self._encoded, mimetype="application/json")
        response.headers["Access-Control-Allow-Origin"] = "*"  # it holds nothing of anybody's
        return response

    def send_page(self) -> Response:
        """The same for people."""
        page = render_template(
            "reference.html",
            document=self.document,
            chapters=chapters(self.document),
            objects=objects(self.document),
        )
        return headers.add(make_response(page))
