"""How the page tells of a failure."""

from http import HTTPStatus

from flask import Response, make_response, render_template, request

from web.failures import failure_of


def show(error: Exception) -> Response:
    """A page with one sentence and the way back."""
    failure = failure_of(error)
    status = HTTPStatus(failure.status)
    message = failure.message
    if status == HTTPStatus.NOT_FOUND:
        what = "schedule" if request.path.startswith("/schedules") else "job"
        message = f"There is no such {what} in this project."
    page = render_template("error.html", title=status.phrase, message=message, code=failure.code)
    response = make_response(page, status)
    response.headers.update(failure.headers)
    return response
