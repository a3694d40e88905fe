"""Errors that a caller can act on: each has a machine code and a sentence that says what to do."""


class RunnerError(Exception):
    """Root of all expected failures of the runner.

    ``code`` is stable and machine readable, ``param`` names the offending field where there is one.
    """

    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(RunnerError):
    """The request itself is wrong; repeating it unchanged cannot help."""

    code = "invalid_request"


class StateConflict(RunnerError):
    """The thing exists, but its present state does not allow this."""

    code = "state_conflict"


class Forbidden(RunnerError):
    """The caller is known, and may not do this."""

    code = "forbidden"


class NotFound(RunnerError):
    """There is no such thing in the caller's project."""

    code = "not_found"


class Gone(RunnerError):
    """There was such a thing in the caller's project; its bytes are there no more."""

    code = "gone"


class Unauthenticated(RunnerError):
    """No key, or a key that is unknown, expired or revoked."""

    code = "invalid_api_key"


class TooManyRequests(RunnerError):
    """The caller sends faster than its limit allows; the same request will do soon."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, wait_seconds: float) -> None:
        super().__init__(message)
        self.wait_seconds = wait_seconds


class TooLarge(RunnerError):
    """More bytes or lines than this installation accepts."""

    code = "too_large"


class Unavailable(RunnerError):
    """A service that this needs is away; the same request will do later."""

    code = "unavailable"


class StorageFull(RunnerError):
    """There is no room for more; what was accepted before is safe."""

    code = "storage_full"


class IngestLost(RunnerError):
    """The ingest of a job was taken over, cancelled or finished elsewhere."""

    code = "ingest_lost"
