"""JSON bodies: read into a strict model, and every fault told by code and parameter."""

from typing import Annotated, TypeVar

from flask import request
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from runner.domain.errors import InvalidRequest

Model = TypeVar("Model", bound="Body")


def _whole(value: object) -> object:
    """JSON has one kind of number: 3600.0 is as whole as 3600."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]
"""An integer, also where it is written with a fraction of zero; true and "1" are none."""


class Body(BaseModel):
    """Root of what requests carry.

    A parameter that we would ignore is refused, as OpenAI does: a limit that the caller believes
    in must not vanish in silence.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def read_body(model: type[Model]) -> Model:
    """The request's body, whatever its content type says.

    Raises:
        InvalidRequest: it is no JSON object of that model; the first fault is named.
    """
    try:
        return model.model_validate_json(request.get_data())
    except ValidationError as error:
        fault = error.errors(include_url=False, include_input=False)[0]
    raise _refusal(fault)


def _refusal(fault: ErrorDetails) -> InvalidRequest:
    param = _param(fault)
    match fault["type"]:
        case "json_invalid":
            return InvalidRequest(f"The body is not JSON. {fault['msg']}.", code="invalid_json")
        case "missing":
            code, message = "missing_required_parameter", f"{param} is required."
        case "extra_forbidden":
            code, message = "unknown_parameter", f"Unknown parameter: {param}."
        case "literal_error":
            code, message = "invalid_value", f"{param}: {fault['msg']}."
        case _:
            code, message = "invalid_type", f"{param or 'The body'}: {fault['msg']}."
    return InvalidRequest(message, code=code, param=param)


def _param(fault: ErrorDetails) -> str | None:
    """The parameter's dotted name; inside ``metadata`` the names are the caller's own."""
    place = [str(step) for step in fault["loc"]]
    if place[:1] == ["metadata"]:
        return "metadata"
    return ".".join(place)[:100] or None
