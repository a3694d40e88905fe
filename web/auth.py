"""Who is asking: a bearer key becomes a caller before any view of the API runs."""

from typing import cast

from flask import g, request

from runner.domain.errors import Unauthenticated
from runner.services import keys
from runner.services.keys import Caller
from web.request_scope import current_runtime


def require_key() -> None:
    """Find the caller, in a transaction of its own.

    Noting when a key was last used locks its row, and an upload may last for minutes.
    """
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret:
        raise Unauthenticated(
            "No API key was provided. Send it as a header: Authorization: Bearer YOUR_KEY."
        )
    with current_runtime().transaction() as session:
        g.caller = keys.authenticate(session, secret)


def current_caller() -> Caller:
    """The caller of this request."""
    return cast(Caller, g.caller)
