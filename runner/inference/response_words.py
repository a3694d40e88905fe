"""A fault that was found in a chat, told of the response that the chat stands for."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from runner.inference.bodies import BadBody
from runner.inference.response_items import Place

FORMAT = "text.format"
_OUR_WORDS = {"max_tokens": "max_output_tokens", "response_format": FORMAT}
_MESSAGE = re.compile(r"messages\[(\d+)\](?:\.tool_calls\[(\d+)\])?(?:\.function)?(.*)")
_FUNCTION = re.compile(r"(tools\[\d+\]|tool_choice)\.function(.*)")


@dataclass(frozen=True, slots=True)
class Words:
    """The fields of one response by those of its chat; ``places`` are those of the messages."""

    places: Sequence[Place]

    def of(self, error: BadBody) -> BadBody:
        """The fault, by the field of the response."""
        theirs = error.param or ""
        ours = self._field(theirs)
        if ours == theirs:
            return error
        return BadBody(error.message.replace(theirs, ours), ours, error.code)

    def _field(self, theirs: str) -> str:
        message = _MESSAGE.fullmatch(theirs)
        if message is not None:
            number, call, inside = message.groups()
            place = self.places[int(number)]
            return (place.message if call is None else place.calls[int(call)]) + inside
        function = _FUNCTION.fullmatch(theirs)
        if function is not None:
            return "".join(function.groups())
        # A response's format has the schema's fields beside its type, a chat's one level below.
        flat = theirs.replace("response_format.json_schema", "response_format")
        name, dot, inside = flat.partition(".")
        return _OUR_WORDS.get(name, name) + dot + inside
