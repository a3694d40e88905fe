"""The body of a request as the server hands it over, with one kind of failure."""

from collections.abc import Callable, Iterator
from typing import IO

from werkzeug.exceptions import BadRequest


class BodyStream:
    """A server's input stream. What goes wrong in it is told as a fault of who sends.

    Servers have exceptions of their own for chunks that are malformed or end too early; each would
    look like a fault of ours.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream

    def read(self, size: int = -1) -> bytes:
        """The next bytes, at most ``size``; none at the end."""
        return self._told(self._stream.read, size)

    def readline(self, size: int = -1) -> bytes:
        """The next line, or at most ``size`` bytes of it."""
        return self._told(self._stream.readline, size)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.readline, b"")

    def _told(self, read: Callable[[int], bytes], size: int) -> bytes:
        try:
            return read(size)
        except Exception as error:
            raise BadRequest("The body is malformed or ends too early; send it again.") from error
