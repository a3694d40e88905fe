"""The server that is examined, and how it is reached."""

import json
import secrets
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from openai import AsyncOpenAI, OpenAI

_SECONDS = 120.0  # for one request


@dataclass(frozen=True, slots=True)
class Answer:
    """A raw answer: its status, and its body read as JSON where it is."""

    status: int
    body: Any


@dataclass(frozen=True, slots=True)
class Target:
    """A server, a key to it, and what to ask of it.

    Attributes:
        base_url: as the official client takes it, with the ``/v1``.
        model: the name in every line; None takes the first that the server lists.
        other_api_key: a key of another tenant, who must see nothing of the first one's.
        content_bytes: the size of the file that is read as a stream.
        nonce: told in metadata and names, so that no two examinations are taken for repeats.
    """

    base_url: str
    api_key: str
    model: str | None = None
    other_api_key: str | None = None
    content_bytes: int = 20 * 1024**2
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))

    def client(self, api_key: str | None = None) -> OpenAI:
        """The official client."""
        return OpenAI(base_url=self.base_url, api_key=api_key or self.api_key, timeout=_SECONDS)

    def async_client(self) -> AsyncOpenAI:
        """The official client for coroutines."""
        return AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, timeout=_SECONDS)

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        """A call of the server outside ``/v1``, where the official client has no method for it."""
        place = urlsplit(self.base_url)
        kind = HTTPSConnection if place.scheme == "https" else HTTPConnection
        connection = kind(place.hostname or "", place.port, timeout=_SECONDS)
        headers = {"Authorization": f"Bearer {self.api_key}", "Content-Type": "application/json"}
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        try:
            return Answer(answer.status, json.loads(text))
        except ValueError:
            return Answer(answer.status, None)
