"""Who uses the browser: its cookies, and the way to the sign-in page for whoever is not known."""

import secrets
from typing import Any, cast

from flask import Response, g, redirect, request, url_for
from flask.typing import ResponseReturnValue

from runner.services import web_sessions
from runner.services.keys import Caller
from runner.services.web_sessions import LIFE, SignedIn
from web.request_scope import current_runtime
from web.ui import csrf

_SESSION, _GUEST = "tokenmill_session", "tokenmill_guest"
_TOKEN_BYTES = 32


def require_session() -> ResponseReturnValue | None:
    """Find who is signed in, in a transaction of its own; send others to the sign-in page."""
    token = session_token()
    with current_runtime().transaction() as session:
        g.signed_in = web_sessions.find_session(session, token) if token else None
    if g.signed_in is not None:
        return None
    way_in = url_for("ui.sign_in.show_form", job=(request.view_args or {}).get("job_id"))
    if "HX-Request" in request.headers:  # a redirect would put that page into a part of this one
        return Response(status=401, headers={"HX-Redirect": way_in})
    return redirect(way_in, 303)


def require_token() -> None:
    """Refuse a change that does not carry this session's token."""
    if request.method == "POST":
        csrf.check_token(session_token())


def current_caller() -> Caller:
    """The caller that this browser signed in as."""
    return cast(SignedIn, g.signed_in).caller


def session_token() -> str:
    """The token of the browser's session; empty when it has none."""
    return request.cookies.get(_cookie_name(_SESSION), "")


def guest_token() -> str:
    """What stands in for a session until there is one: sign-in forms are bound to it."""
    if "guest" not in g:
        held = request.cookies.get(_cookie_name(_GUEST))
        g.guest = held or secrets.token_urlsafe(_TOKEN_BYTES)
    return cast(str, g.guest)


def keep_guest(response: Response) -> Response:
    """Have the browser hold its guest token until it closes."""
    _set_cookie(response, _GUEST, guest_token(), None)
    return response


def keep_session(response: Response, token: str) -> Response:
    """Have the browser hold a new session's token."""
    _set_cookie(response, _SESSION, token, int(LIFE.total_seconds()))
    return response


def drop_session(response: Response) -> Response:
    """Have the browser forget its session."""
    _set_cookie(response, _SESSION, "", 0)
    return response


def shown_everywhere() -> dict[str, Any]:
    """What every template may show."""
    signed_in = g.get("signed_in")
    cookie = guest_token() if signed_in is None else session_token()
    return {"signed_in": signed_in, "csrf_field": csrf.FIELD, "csrf_token": csrf.token_for(cookie)}


def _set_cookie(response: Response, name: str, value: str, max_age: int | None) -> None:
    response.set_cookie(
        _cookie_name(name),
        value,
        max_age=max_age,
        secure=request.is_secure,
        httponly=True,
        samesite="Lax",
    )


def _cookie_name(name: str) -> str:
    """Under https a name that no other host of the domain can set."""
    return f"__Host-{name}" if request.is_secure else name
