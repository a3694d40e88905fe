"""The headers of pages: nothing from elsewhere, nothing inline, in nobody's frame."""

from flask import Response

CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)


def add(response: Response) -> Response:
    """Set them on an answer of the page."""
    response.headers["Content-Security-Policy"] = CONTENT_SECURITY_POLICY
    response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
    # Not "no-referrer": with that, browsers hide the origin of our own forms from us, too.
    response.headers["Referrer-Policy"] = "same-origin"
    return response
