"""A browser that signed in, without a script: what tests of the pages act with."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
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


class Tags(HTMLParser):
    """The tags of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inline = ""
        self._open = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))
        self._open = tag

    def handle_endtag(self, tag: str) -> None:
        self._open = ""

    def handle_data(self, data: str) -> None:
        if self._open in ("script", "style"):
            self.inline += data


def assert_harmless(page: str) -> None:
    """Nothing runs in a page but what it loads from us, and nothing in it leads elsewhere."""
    tags = Tags(page)
    assert tags.inline == ""
    for tag, attributes in tags.found:
        assert tag not in ("iframe", "object", "embed", "base", "style", "audio", "video"), tag
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("style", "srcdoc", "hx-on", "hx-vals"), (tag, name)
            if name in ("src", "href", "action", "hx-get", "formaction"):
                assert value is not None
                assert value.startswith(("/", "#")), (tag, value)
                assert not value.startswith("//"), (tag, value)


class FilledForm(HTMLParser):
    """The texts that a form of a page would send if nobody changed it."""

    def __init__(self, page: str, action: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._action = action
        self._inside = False
        self._select = self._reading = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = dict(attributes)
        name = told.get("name") or ""
        match tag:
            case "form":
                self._inside = told.get("action") == self._action
            case "select":
                self._select = name
            case "input" if self._inside:
                self.values[name] = told.get("value") or ""
            case "textarea" if self._inside:
                self.values[name], self._reading = "", name
            case "option" if self._inside and ("selected" in told or self._is_first()):
                self.values[self._select] = told.get("value") or ""
                self._reading = "" if "value" in told else self._select

    def handle_endtag(self, tag: str) -> None:
        if tag in ("option", "textarea"):
            self._reading = ""
        elif tag == "form":
            self._inside = False

    def handle_data(self, data: str) -> None:
        if self._reading:
            self.values[self._reading] += data

    def _is_first(self) -> bool:
        return self._select not in self.values
