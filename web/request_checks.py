"""What no request may have, wherever it goes: bytes that we would misread or cannot keep.

Servers in front of the application refuse some of this, but not all of them and not all of it.
"""

from flask import abort, request

_PLAIN = ("", "identity")


def refuse_unsound() -> None:
    """Refuse a NUL, a length that is none, and a compressed body, before any view runs."""
    _refuse_nul()
    length = request.headers.get("Content-Length", "")
    if length and not (length.isascii() and length.isdigit()):
        abort(400, "Content-Length must be a whole number of bytes.")
    if request.headers.get("Content-Encoding", "").strip().lower() not in _PLAIN:
        abort(415, "A compressed body is not understood; send it without Content-Encoding.")


def _refuse_nul() -> None:
    """No text with a NUL names anything here, and no column holds one."""
    if "\0" in request.path:
        abort(404)
    if any("\0" in text for pair in request.args.items(multi=True) for text in pair):
        abort(400, "The query string holds a NUL character.")
    if any("\0" in value for value in request.headers.values()):
        abort(400, "A header holds a NUL character.")
