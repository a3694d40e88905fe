"""A connection that waits for its server only so long.

A server that hangs (a stopped process, a network that swallows packets) answers nothing and closes
nothing, and its own ``statement_timeout`` hangs with it. So the client has a bound of its own.
"""

import time
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

RV = TypeVar("RV")

PING_SECONDS = 5.0
# Beyond the server's own bound, whose error is the better one: it leaves the connection usable.
MARGIN_SECONDS = 2.0
_POLL_SECONDS = 0.1


class BoundedConnection(psycopg.Connection[Any]):
    """Gives up a wait after ``patience_seconds``, and the connection with it."""

    patience_seconds = 30.0

    def wait(
        self, gen: PQGen[RV], interval: float = _POLL_SECONDS, timeout: float | None = None
    ) -> RV:
        """Wait for one answer of the server.

        Raises:
            OperationalError: there was none in time; the connection is closed.
        """
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        bound = self._bound()
        begun = time.monotonic()
        try:
            return super().wait(gen, interval, bound)
        except psycopg.OperationalError as error:
            if time.monotonic() - begun < bound:
                raise
            # What the server still sends belongs to a question that nobody asks any more.
            self.pgconn.finish()
            raise psycopg.OperationalError(f"no answer within {bound:g} seconds") from error

    def _bound(self) -> float:
        # Only the check of a pooled connection is made outside of a transaction.
        if self.autocommit:
            return PING_SECONDS
        return self.patience_seconds + MARGIN_SECONDS
