"""Who is asking, and whether not too often: a bearer key becomes a caller before any view of the
API runs."""

from typing import cast

from flask import Response, g, request

from runner.domain.errors import TooManyRequests, Unauthenticated
from runner.services import keys
from runner.services.keys import Caller
from runner.services.request_limits import RequestAllowance, take_request
from web.request_scope import current_runtime


def require_key() -> None:
    """Find the caller, in a transaction of its own, and count the request where keys are limited.

    Noting when a key was last used locks its row, and an upload may last for minutes.

    Raises:
        Unauthenticated: there is no key, or none that holds.
        TooManyRequests: the key has sent its requests of this minute.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated(
            "No API key was provided. Send it as a header: Authorization: Bearer YOUR_KEY."
        )
    with current_runtime().transaction() as session:
        g.caller = keys.authenticate(session, secret)
        g.allowance = take_request(session, g.caller)
    if g.allowance is not None and g.allowance.is_refused:
        raise _refusal(g.allowance)


def tell_allowance(response: Response) -> Response:
    """Say in OpenAI's words what a limited key has left."""
    allowance: RequestAllowance | None = g.get("allowance")
    if allowance is not None:
        response.headers["x-ratelimit-limit-requests"] = str(allowance.limit)
        response.headers["x-ratelimit-remaining-requests"] = str(allowance.remaining)
        response.headers["x-ratelimit-reset-requests"] = _duration(allowance.reset_seconds)
    return response


def current_caller() -> Caller:
    """The caller of this request."""
    return cast(Caller, g.caller)


def _refusal(allowance: RequestAllowance) -> TooManyRequests:
    wait = allowance.wait_seconds
    return TooManyRequests(
        f"Rate limit reached for this API key on requests per min (RPM): {allowance.limit:,}. "
        f"Please try again in {_duration(wait)}.",
        wait,
    )


def _duration(seconds: float) -> str:
    """A time as OpenAI writes it: ``20ms``, ``8.64s``, ``1m0s``."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 2), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
