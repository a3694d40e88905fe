"""Whether a change was asked for by our own pages: by where it comes from and by a token.

The token is derived from the secret in the browser's cookie, so it needs no place of its own and
is good for as long as that cookie, and for no other browser.
"""

import hashlib
import hmac
from urllib.parse import urlsplit

from flask import abort, request

FIELD = "csrf_token"
_HEADER = "X-CSRF-Token"
_OURS = ("same-origin", "none")  # none: the person's own doing, not a page's
_REFUSAL = "This form is no longer valid. Go back, reload the page and send it again."


def token_for(cookie: str) -> str:
    """The token that forms carry for the holder of a cookie."""
    return hmac.new(cookie.encode(), b"csrf", hashlib.sha256).hexdigest()


def check_token(cookie: str, given: str | None = None) -> None:
    """Refuse a change whose token (given, or of the header, or of the form) is not the cookie's."""
    if given is None:
        given = request.headers.get(_HEADER) or request.form.get(FIELD, "")
    if not cookie or not hmac.compare_digest(given.encode(), token_for(cookie).encode()):
        abort(403, _REFUSAL)


def refuse_strangers() -> None:
    """Refuse a change that a browser says another site asked for."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if site is not None and site not in _OURS:
        abort(403, _REFUSAL)
    # Only the host is compared: behind a proxy we may not know that it speaks https.
    if origin is not None and urlsplit(origin).netloc != request.host:
        abort(403, _REFUSAL)
