"""Requests that come again: by their ``Idempotency-Key``, or because the client says so."""

from flask import request

from runner.domain.errors import InvalidRequest

_HEADER = "Idempotency-Key"
KEY_LETTERS = 255


def is_retry() -> bool:
    """Whether the official client tells that it sends this request again."""
    return request.headers.get("x-stainless-retry-count", 0, type=int) > 0


def read_idempotency_key() -> str | None:
    """The key, if the caller sent one.

    Raises:
        InvalidRequest: it is empty or too long.
    """
    key = request.headers.get(_HEADER)
    if key is not None and not 1 <= len(key) <= KEY_LETTERS:
        raise InvalidRequest(
            f"An {_HEADER} has 1 to {KEY_LETTERS} characters.",
            code="invalid_idempotency_key",
            param=_HEADER,
        )
    return key
