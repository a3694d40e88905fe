"""The reference of the API: one OpenAPI document, made of the types of the routes, and its page."""

from flask import Flask

from web.reference.document import build_document
from web.reference.page import Reference


def register(app: Flask) -> None:
    """Add both to an application that has all its other routes."""
    reference = Reference(lambda: build_document(app))
    app.add_url_rule("/openapi.json", "reference.document", reference.send_document)
    app.add_url_rule("/reference", "reference.page", reference.send_page)
